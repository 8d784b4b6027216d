"""Speed against other simulators and against the machine's limit. See README.md."""
