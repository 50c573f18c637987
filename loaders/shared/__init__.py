"""Parts that several loaders share."""
