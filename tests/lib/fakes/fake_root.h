/* fake_root.h - a folder that replaces the root of a machine: files of proc and sys. Ends the test
 * on errors. */
#pragma once

/* An empty folder; remove it with fake_root_remove(). The path is static: only one at a time. */
const char *fake_root_new(void);
/* Writes a file at this path in the folder; creates the folders of the path. */
void fake_root_put(const char *root, const char *path, const char *text);
void fake_root_remove(const char *root);
