/* root.h - a folder that replaces the root of a machine: files of proc and sys. Ends the test on
 * errors. */
#pragma once

/* An empty folder; remove it with root_remove(). The path is static: only one at a time. */
const char *root_make(void);
void root_put(const char *root, const char *path, const char *text);
void root_remove(const char *root);
