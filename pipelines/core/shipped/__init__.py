"""Files that come with the package, found in a checkout and in an installed wheel alike.

`configs` and `requirements` here are links to the repository's folders; a wheel holds copies of them.

    files     config_file: a config by its path, or a shipped one by its name; pinned_list: exact versions; schema_file;
              rates_file
"""
