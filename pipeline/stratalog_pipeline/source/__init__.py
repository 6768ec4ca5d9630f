"""The Spark data source `stratalog`."""
