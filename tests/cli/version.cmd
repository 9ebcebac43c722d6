run --version
