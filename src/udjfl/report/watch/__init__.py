"""A live page of runs while they go on; needs the extra `udjfl[report]`.

`progress` follows all runs below a folder, `page` draws them, `server` offers the page on this
machine or writes it to a file.
"""
