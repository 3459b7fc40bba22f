"""Pictures that no benchmark draws, each by a command: `python -m docs.pictures.NAME`."""
