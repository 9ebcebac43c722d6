/* Finds added tokens in text: at each position the longest one that fits, from left to right, without overlaps.
 *
 * Which token is the longest that begins at a position can be told once all bytes behind it are known, so the text is
 * read backwards. The tokens form a trie, spelled backwards, too. With the tokens  ab  cab  b  it is
 *
 *     root -- b -- a -- c          node      its bytes, read backwards    fail    longest
 *                                  b         b                            root    b
 *                                  ba        ab                           root    ab
 *                                  bac       cab                          root    cab
 *
 * While the text is read, the current node has as many of the last bytes as the trie has. When a byte does not fit,
 * `fail` leads to the next shorter node that it may fit: each failure makes the node shorter and each byte makes it
 * longer by one, so that a text of n bytes takes about 2n steps, whatever the tokens are. (Aho and Corasick, 1975)
 */
#include "tokenizer/internal.h"

#include <stdlib.h>

#include "base/memory.h"

/* ---- the trie ---------------------------------------------------------------------------------------------------- */

int tokenizer_compare_added(const void *a, const void *b)
{
    const AddedToken *x = a, *y = b;
    size_t common = MIN(x->length, y->length);
    for (size_t i = 1; i <= common; i++) {
        unsigned char bx = (unsigned char)x->text[x->length - i], by = (unsigned char)y->text[y->length - i];
        if (bx != by)
            return bx < by ? -1 : 1;
    }
    if (x->length != y->length)
        return x->length < y->length ? -1 : 1;
    return 0;
}

/* The child of the node for that byte; 0, which is the root, if it has none. */
static uint32_t find_child(const TrieNode *nodes, uint32_t node, unsigned char byte)
{
    uint32_t low = nodes[node].children, high = low + nodes[node].child_count, end = high;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (nodes[middle].byte < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low < end && nodes[low].byte == byte ? low : 0;
}

/* The node after one more byte. */
static uint32_t next_node(const TrieNode *nodes, uint32_t node, unsigned char byte)
{
    uint32_t child;
    while ((child = find_child(nodes, node, byte)) == 0 && node != 0)
        node = nodes[node].fail;
    return child;
}

/* While the trie is built: the tokens that end with the bytes of a node are those from low up to high. */
typedef struct {
    uint32_t low, high;
} Range;

/* Append the children of a node of `depth` bytes to the nodes [0, used) and return how many there are then. All nodes of
 * less depth have their children. */
static uint32_t add_children(AddedSet *set, Range *ranges, uint32_t node, size_t depth, uint32_t used)
{
    TrieNode *nodes = set->nodes;
    uint32_t low = ranges[node].low, high = ranges[node].high;
    nodes[node].longest = node ? nodes[nodes[node].fail].longest : UNSET;
    if (low < high && set->items[low].length == depth)
        nodes[node].longest = low++;
    nodes[node].children = used;
    for (uint32_t end; low < high; low = end, used++) {
        const AddedToken *first = &set->items[low];
        unsigned char byte = (unsigned char)first->text[first->length - depth - 1];
        for (end = low + 1; end < high; end++)
            if ((unsigned char)set->items[end].text[set->items[end].length - depth - 1] != byte)
                break;
        ranges[used] = (Range){low, end};
        nodes[used].byte = byte;
        nodes[used].fail = node ? next_node(nodes, nodes[node].fail, byte) : 0;
    }
    nodes[node].child_count = used - nodes[node].children;
    return used;
}

int tokenizer_build_trie(AddedSet *set)
{
    size_t most = 1;
    for (size_t i = 0; i < set->count; i++) {
        most += set->items[i].length;
        set->last[(unsigned char)set->items[i].text[set->items[i].length - 1]] = true;
    }
    set->nodes = calloc(most, sizeof *set->nodes);
    Range *ranges = calloc(most, sizeof *ranges);
    if (set->nodes && ranges) {
        ranges[0].high = (uint32_t)set->count;
        size_t depth = 0;
        uint32_t used = 1, level = 1; /* the nodes below `level` have at most `depth` bytes */
        for (uint32_t node = 0; node < used; node++) {
            if (node == level) {
                level = used;
                depth++;
            }
            used = add_children(set, ranges, node, depth, used);
        }
    }
    free(ranges);
    return set->nodes && ranges ? 0 : -1;
}

const AddedToken *tokenizer_find_added(const AddedSet *set, const char *text, size_t length)
{
    uint32_t node = 0;
    for (size_t i = length; set->count && i > 0; i--)
        if ((node = find_child(set->nodes, node, (unsigned char)text[i - 1])) == 0)
            return NULL;
    const AddedToken *a = node && set->nodes[node].longest != UNSET ? &set->items[set->nodes[node].longest] : NULL;
    return a && a->length == length ? a : NULL;
}

/* ---- searching --------------------------------------------------------------------------------------------------- */

static int append_match(AddedMatches *found, size_t at, const AddedToken *token)
{
    if (found->count == found->capacity) {
        AddedMatch *items = memory_grow(found->items, &found->capacity, found->count + 1, sizeof *items);
        if (!items)
            return -1;
        found->items = items;
    }
    found->items[found->count++] = (AddedMatch){at, token};
    return 0;
}

int tokenizer_search_added(const AddedSet *set, const char *s, size_t n, const char *plain, AddedMatches *found)
{
    uint32_t node = 0;
    size_t i = set->count ? n : 0;
    for (;;) {
        while (node == 0 && i > 0 && !set->last[(unsigned char)s[i - 1]])
            i--;
        if (i == 0)
            return 0;
        i--;
        node = plain && plain[i] ? 0 : next_node(set->nodes, node, (unsigned char)s[i]);
        uint32_t longest = set->nodes[node].longest;
        if (longest != UNSET && append_match(found, i, &set->items[longest]))
            return -1;
    }
}
