/* guard.c - memory that ends at an inaccessible page. */
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include "lib/rigs/guard.h"
#include "lib/lib.h"

#define PAGE ((size_t)4096)
#define MAX_PIECES 256

static struct {
    void *map;
    size_t bytes;
} pieces[MAX_PIECES];
static unsigned n_pieces;

void *guard_alloc(size_t bytes)
{
    size_t usable = (bytes + PAGE - 1) / PAGE * PAGE;
    if (n_pieces == MAX_PIECES)
        fail_msg("more than %u pieces of guarded memory", MAX_PIECES);
    uint8_t *map =
        mmap(NULL, usable + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || mprotect(map + usable, PAGE, PROT_NONE) < 0)
        fail_msg("no guarded memory");
    pieces[n_pieces].map = map;
    pieces[n_pieces++].bytes = usable + PAGE;
    return map + usable - bytes;
}

void *guard_copy(const void *from, size_t bytes)
{
    return memcpy(guard_alloc(bytes), from, bytes);
}

void guard_free_all(void)
{
    while (n_pieces) {
        n_pieces--;
        munmap(pieces[n_pieces].map, pieces[n_pieces].bytes);
    }
}
