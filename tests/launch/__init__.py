"""Two ways in, proved as a person would see them: JupyterLab in a browser, and Binder's build. `make test-launch`."""
