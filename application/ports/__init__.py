"""Every port, one small file each. Read this folder first: values in, values out.

No handle, future or framework type crosses a port; a row id is the one name that does.
"""
