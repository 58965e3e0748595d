"""A page about runs: what they are, how they learned, what they reached and what their models answer.

`find` says what a folder is, `runs`, `answers` and `studies` read it, `page` puts all of it into words and tables, and
`write` leaves three files: the page, and the numbers in it. Folders are read as they are, and nothing in them changes.
"""
