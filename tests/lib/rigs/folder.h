/* folder.h - a folder in /tmp for the files of a test. Ends the test on errors. */
#pragma once

#define FOLDER_PATH 64 // bytes

/* Makes an empty folder and writes its path. */
void folder_make(char path[FOLDER_PATH]);
/* Number of files; writes the path of one of them. Hidden files do not count. */
unsigned folder_files(const char *folder, char path[FOLDER_PATH + 256]);
/* Removes the folder with its files. */
void folder_remove(const char *folder);
