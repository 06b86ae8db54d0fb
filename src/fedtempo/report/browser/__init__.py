"""Pages for a browser: one HTML file each, which loads nothing from anywhere.

`document.py` is the file around a page's parts: styles, scripts, data, and what it may do. `assets/` has plain
JavaScript and CSS: charts, tables, what each page does.
"""
