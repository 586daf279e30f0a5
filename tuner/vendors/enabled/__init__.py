"""Each module here registers one vendor's templates, for processes that import the templates that they may use."""
