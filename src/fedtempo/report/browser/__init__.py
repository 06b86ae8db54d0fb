"""Pages for a browser: one HTML file each, which loads nothing from anywhere.

    document.py       the file around a page's parts: styles, scripts, data, what it may do
    assets/           plain JavaScript and CSS: charts, tables, what each page does
"""
