"""Reports as HTML pages, and their figures; needs the extra `udjfl[report]`."""
