"""Builds candidates and runs searchers on the machines of a Ray cluster. Start at `builders.RayBuilders` and
`search.RaySearchers`; `link` and `search_link` are the processes that speak to Ray."""
