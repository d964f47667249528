"""The HTML page of a report: its figures as SVG drawn from data, its tables, its style and its one script.

A figure of the page is made of panels (`panels.Panel`), each as wide as a phone, so that they stand beside each other on a
large screen and below each other on a small one. The files beside: `report.html.j2` is the page, `parts.html.j2` what a panel
and a table look like in it, `report.css` its style, `report.js` what it does when something is pointed at or clicked. Without
scripts the page shows the same, and browsers show the titles of marks.
"""
