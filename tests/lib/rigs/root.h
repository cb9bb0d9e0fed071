/* root.h - a folder that stands for a machine: files of its proc and sys. Ends the test on errors.
 */
#pragma once

/* An empty one; remove it with root_remove(). Static text, one at a time. */
const char *root_make(void);
void root_put(const char *root, const char *path, const char *text);
void root_remove(const char *root);
