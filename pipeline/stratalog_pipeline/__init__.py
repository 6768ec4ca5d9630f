"""The data pipeline: reads sealed data straight from the bucket, as tables. Needs requirements/pipeline.txt."""
