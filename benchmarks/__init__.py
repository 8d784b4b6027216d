"""Speed against other simulators and against the machine's own limit. See README.md beside this."""
