"""One module a vendor, for processes that import the templates that they may use."""
