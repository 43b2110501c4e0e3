/* Validates the header of an untrusted GGUF file (layout: the comment at the head of ggml's gguf.h).
 *
 * The walk reads through one small buffer and allocates only for names it has really read, so a file
 * that claims 2^60 keys costs nothing. Limits that come from ggml's reader are marked so; the file must pass
 * those too, because ggml reads it afterwards.
 */
#define _FILE_OFFSET_BITS 64
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ggml.h"
#include "gguf.h"
#include "gguf_names.h"

enum {
    MAX_ENTRIES = 1 << 15, /* keys, tensors: ggml compares each name with all before it */
    MAX_KEY_BYTES = 65535, /* GGUF specification */
    MAX_LENGTH = 1 << 30,  /* ggml: bytes of a string, elements of an array */
    MIN_KEY_BYTES = 8 + 1 + 4 + 1,
    MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8
};

/* metadata */

typedef struct header {
    uint32_t version, alignment;
    int64_t n_tensors, n_keys;
} header;

/* Bytes of one value; 0 for what has no fixed width. */
static const unsigned char widths[GGUF_TYPE_COUNT] = {
    [GGUF_TYPE_UINT8] = 1,  [GGUF_TYPE_INT8] = 1,   [GGUF_TYPE_BOOL] = 1,    [GGUF_TYPE_UINT16] = 2,
    [GGUF_TYPE_INT16] = 2,  [GGUF_TYPE_UINT32] = 4, [GGUF_TYPE_INT32] = 4,   [GGUF_TYPE_FLOAT32] = 4,
    [GGUF_TYPE_UINT64] = 8, [GGUF_TYPE_INT64] = 8,  [GGUF_TYPE_FLOAT64] = 8,
};

static uint64_t least_bytes_of(int32_t type) {
    if (type == GGUF_TYPE_STRING) return 8;
    return type >= 0 && type < GGUF_TYPE_COUNT ? widths[type] : 0;
}

static int skip_string(gguf_reader *r, uint64_t number, uint64_t *length) {
    uint64_t start = r->at;
    int bad = kit_gguf_take(r, length, 8, "the length of a string");
    if (bad) return bad;
    if (*length > kit_gguf_left(r) || *length > MAX_LENGTH) {
        return kit_gguf_fail(r, *length > kit_gguf_left(r) ? KIT_GGUF_CUT : KIT_GGUF_VALUE, start,
                             *length > kit_gguf_left(r) ? kit_gguf_left(r) : (uint64_t) MAX_LENGTH, *length,
                             "string %" PRIu64 " claims %" PRIu64 " bytes; %" PRIu64
                             " are left in the file and ggml reads at most %d",
                             number, *length, kit_gguf_left(r), (int) MAX_LENGTH);
    }
    return kit_gguf_take(r, NULL, *length, "a string");
}

static int check_bools(gguf_reader *r, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        unsigned char byte = 0;
        int bad = kit_gguf_take(r, &byte, 1, "a truth value");
        if (bad) return bad;
        if (byte > 1) {
            return kit_gguf_fail(r, KIT_GGUF_VALUE, r->at - 1, 1, byte,
                                 "a truth value is %d, neither 0 nor 1", byte);
        }
    }
    return 0;
}

static int read_array_head(gguf_reader *r, kit_gguf_value *value) {
    int bad = kit_gguf_take(r, &value->type, 4, "the type of an array");
    if (bad) return bad;
    if (value->type == GGUF_TYPE_ARRAY) {
        return kit_gguf_fail(r, KIT_GGUF_TYPE, r->at - 4, 0, GGUF_TYPE_ARRAY,
                             "arrays of arrays are not read, by ggml neither");
    }
    bad = kit_gguf_take(r, &value->count, 8, "the length of an array");
    if (bad) return bad;
    if (value->count > MAX_LENGTH) {
        return kit_gguf_fail(r, KIT_GGUF_VALUE, r->at - 8, MAX_LENGTH, value->count,
                             "the array claims %" PRIu64 " elements, ggml reads at most %d", value->count,
                             (int) MAX_LENGTH);
    }
    return 0;
}

static int read_value(gguf_reader *r, kit_gguf_value *value) {
    memset(value, 0, sizeof *value);
    value->count = 1;
    uint64_t start = r->at;
    int bad = kit_gguf_take(r, &value->type, 4, "the type of a value");
    if (bad) return bad;
    if (value->type == GGUF_TYPE_ARRAY) {
        value->is_array = 1;
        start = r->at;
        bad = read_array_head(r, value);
        if (bad) return bad;
    }
    uint64_t width = least_bytes_of(value->type);
    if (width == 0) {
        return kit_gguf_fail(r, KIT_GGUF_TYPE, start, GGUF_TYPE_COUNT - 1, (uint32_t) value->type,
                             "value type %" PRId32 " does not exist, GGUF has 0 to %d", value->type,
                             GGUF_TYPE_COUNT - 1);
    }
    if (value->count > kit_gguf_left(r) / width) return kit_gguf_cut(r, "the value", value->count * width);
    value->offset = r->at;
    if (value->type == GGUF_TYPE_STRING) {
        uint64_t length = 0;
        for (uint64_t i = 0; i < value->count && !bad; i++) bad = skip_string(r, i, &length);
        if (!value->is_array) value->offset += 8;
    } else if (value->type == GGUF_TYPE_BOOL) {
        bad = check_bools(r, value->count);
    } else {
        bad = kit_gguf_take(r, NULL, value->count * width, "the value");
    }
    value->nbytes = r->at - value->offset;
    return bad;
}

static int read_alignment(gguf_reader *r, const kit_gguf_value *value, header *h) {
    if (value->is_array || value->type != GGUF_TYPE_UINT32) {
        return kit_gguf_fail(r, KIT_GGUF_ALIGNMENT, value->offset, GGUF_TYPE_UINT32, (uint32_t) value->type,
                             "the alignment must be one uint32 (type %d), not %s type %" PRId32,
                             (int) GGUF_TYPE_UINT32, value->is_array ? "an array of" : "of", value->type);
    }
    uint64_t after = r->at;
    r->at = value->offset;
    int bad = kit_gguf_take(r, &h->alignment, 4, "the alignment");
    r->at = after;
    if (bad) return bad;
    if (h->alignment == 0 || (h->alignment & (h->alignment - 1)) != 0) {
        return kit_gguf_fail(r, KIT_GGUF_ALIGNMENT, value->offset, GGUF_DEFAULT_ALIGNMENT, h->alignment,
                             "the alignment is %" PRIu32 ", it must be a power of two", h->alignment);
    }
    return 0;
}

static int walk_keys(gguf_reader *r, header *h, kit_gguf_index *index, gguf_names *keys) {
    for (int64_t i = 0; i < h->n_keys; i++) {
        gguf_name key;
        kit_gguf_value value;
        kit_gguf_now_at(r, KIT_GGUF_KEY, i, NULL, 0);
        int bad = kit_gguf_read_name(r, keys, KIT_GGUF_KEY, MAX_KEY_BYTES, "a key", &key);
        if (!bad) bad = read_value(r, &value);
        if (bad) return bad;
        if (key.length == strlen(GGUF_KEY_GENERAL_ALIGNMENT) &&
            memcmp(keys->bytes + key.start, GGUF_KEY_GENERAL_ALIGNMENT, key.length) == 0) {
            bad = read_alignment(r, &value, h);
            if (bad) return bad;
        }
        if (index != NULL && (uint64_t) i < index->value_room) index->values[i] = value;
    }
    return 0;
}

/* tensors */

typedef struct extent {
    uint64_t offset, nbytes, described_at;
} extent;

static int read_shape(gguf_reader *r, uint32_t *n_dims, int64_t ne[GGML_MAX_DIMS], int64_t *n_elements) {
    int bad = kit_gguf_take(r, n_dims, 4, "the number of dimensions");
    if (bad) return bad;
    if (*n_dims < 1 || *n_dims > GGML_MAX_DIMS) {
        return kit_gguf_fail(r, KIT_GGUF_SHAPE, r->at - 4, GGML_MAX_DIMS, *n_dims,
                             "it has %" PRIu32 " dimensions, a tensor has 1 to %d", *n_dims, GGML_MAX_DIMS);
    }
    *n_elements = 1;
    for (uint32_t d = 0; d < *n_dims; d++) {
        bad = kit_gguf_take(r, &ne[d], 8, "a dimension");
        if (bad) return bad;
        if (ne[d] <= 0) {
            return kit_gguf_fail(r, KIT_GGUF_SHAPE, r->at - 8, 1, (uint64_t) ne[d],
                                 "dimension %" PRIu32 " is %" PRId64 ", it must be 1 or more", d, ne[d]);
        }
        /* ggml asks that the product stays below INT64_MAX */
        if (INT64_MAX / ne[d] <= *n_elements) {
            return kit_gguf_fail(r, KIT_GGUF_SHAPE, r->at - 8, INT64_MAX, (uint64_t) ne[d],
                                 "its dimensions multiply to more elements than 64 bits count");
        }
        *n_elements *= ne[d];
    }
    return 0;
}

static int read_tensor_type(gguf_reader *r, int64_t row, int64_t n_elements, uint64_t *nbytes) {
    int32_t type = -1;
    int bad = kit_gguf_take(r, &type, 4, "the type of a tensor");
    if (bad) return bad;
    if (type < 0 || type >= GGML_TYPE_COUNT) {
        return kit_gguf_fail(r, KIT_GGUF_TYPE, r->at - 4, GGML_TYPE_COUNT - 1, (uint32_t) type,
                             "tensor type %" PRId32 " is unknown to this ggml, which has 0 to %d", type,
                             GGML_TYPE_COUNT - 1);
    }
    /* type ids that were given up have sizes of 0 */
    uint64_t block_bytes = ggml_type_size((enum ggml_type) type);
    int64_t block = ggml_blck_size((enum ggml_type) type);
    if (block_bytes == 0 || block <= 0) {
        return kit_gguf_fail(r, KIT_GGUF_TYPE, r->at - 4, 0, (uint32_t) type,
                             "tensor type %" PRId32 " was removed from ggml; convert the model again", type);
    }
    if (row % block != 0) {
        return kit_gguf_fail(r, KIT_GGUF_SHAPE, r->at - 4, (uint64_t) block, (uint64_t) row,
                             "its rows have %" PRId64 " elements, %s comes in blocks of %" PRId64, row,
                             ggml_type_name((enum ggml_type) type), block);
    }
    uint64_t n_blocks = (uint64_t) (n_elements / block);
    if (n_blocks > SIZE_MAX / block_bytes) {
        return kit_gguf_fail(r, KIT_GGUF_SHAPE, r->at - 4, 0, n_blocks,
                             "it has more bytes than 64 bits count");
    }
    *nbytes = n_blocks * block_bytes;
    return 0;
}

static int walk_tensors(gguf_reader *r, const header *h, kit_gguf_index *index, gguf_names *tensors,
                        extent **extents) {
    size_t room = 0;
    for (int64_t i = 0; i < h->n_tensors; i++) {
        gguf_name name;
        uint32_t n_dims = 0;
        int64_t ne[GGML_MAX_DIMS] = {0}, n_elements = 0;
        kit_gguf_now_at(r, KIT_GGUF_TENSOR, i, NULL, 0);
        if (kit_gguf_grow((void **) extents, &room, (size_t) i + 1, sizeof **extents) != 0)
            return kit_gguf_out_of_memory(r);
        extent *e = *extents + i;
        e->described_at = r->at;
        int bad =
            kit_gguf_read_name(r, tensors, KIT_GGUF_TENSOR, GGML_MAX_NAME - 1, "a tensor's name", &name);
        if (!bad) bad = read_shape(r, &n_dims, ne, &n_elements);
        if (!bad) bad = read_tensor_type(r, ne[0], n_elements, &e->nbytes);
        if (!bad) bad = kit_gguf_take(r, &e->offset, 8, "the offset of a tensor");
        if (bad) return bad;
        if (index != NULL && (uint64_t) i < index->tensor_room) index->n_dims[i] = n_dims;
    }
    return 0;
}

static uint64_t padded(uint64_t n, uint64_t alignment) {
    return (n + alignment - 1) & ~(alignment - 1);
}

/* ggml wants the data of the tensors in the order of their descriptions, each at the next aligned byte. */
static int check_extents(gguf_reader *r, const header *h, const gguf_names *tensors, const extent *extents) {
    uint64_t data = padded(r->at, h->alignment), next = 0;
    for (int64_t i = 0; i < h->n_tensors; i++) {
        const extent *e = extents + i;
        kit_gguf_now_at(r, KIT_GGUF_TENSOR, i, tensors->bytes + tensors->entries[i].start,
                        tensors->entries[i].length);
        if (e->offset % h->alignment != 0) {
            return kit_gguf_fail(r, KIT_GGUF_OFFSET, e->described_at, h->alignment, e->offset,
                                 "its data offset %" PRIu64 " is no multiple of the alignment %" PRIu32,
                                 e->offset, h->alignment);
        }
        if (e->offset != next) {
            return kit_gguf_fail(r, KIT_GGUF_OFFSET, e->described_at, next, e->offset,
                                 "its data offset is %" PRIu64 ", the tensors before it end at %" PRIu64
                                 " and ggml wants no gap",
                                 e->offset, next);
        }
        uint64_t start = data + next;
        uint64_t there = start < r->size ? r->size - start : 0;
        if (e->nbytes > there) {
            return kit_gguf_fail(r, KIT_GGUF_DATA_CUT, start, e->nbytes, there,
                                 "the file is cut short: its data need %" PRIu64 " bytes from byte %" PRIu64
                                 ", the file has %" PRIu64 " there and ends at byte %" PRIu64
                                 "; copy or fetch it again",
                                 e->nbytes, start, there, r->size);
        }
        next = padded(next + e->nbytes, h->alignment);
    }
    return 0;
}

/* the whole file */

static int wrong_magic(gguf_reader *r, const unsigned char magic[4]) {
    const char *hint = "";
    if (memcmp(magic, "lmgg", 4) == 0 || memcmp(magic, "fmgg", 4) == 0 || memcmp(magic, "tjgg", 4) == 0) {
        hint = "; this is one of ggml's formats from before GGUF, convert the model again";
    } else if (memcmp(magic, "vers", 4) == 0) {
        hint = "; if this is a Git LFS pointer, fetch the file it stands for (git lfs pull)";
    } else if (memcmp(magic, "PK\3\4", 4) == 0) {
        hint = "; this is a zip archive (a torch checkpoint, perhaps), convert it first";
    }
    char shown[5] = {0};
    for (int i = 0; i < 4; i++) shown[i] = magic[i] >= 0x20 && magic[i] < 0x7f ? (char) magic[i] : '.';
    return kit_gguf_fail(r, KIT_GGUF_MAGIC, 0, 0, 0,
                         "not a GGUF file: it starts with \"%s\" (%02x %02x %02x %02x), not \"GGUF\"%s",
                         shown, magic[0], magic[1], magic[2], magic[3], hint);
}

static int read_version(gguf_reader *r, header *h) {
    int bad = kit_gguf_take(r, &h->version, 4, "the version");
    if (bad) return bad;
    if ((h->version & 0xffff) == 0 && h->version != 0) {
        return kit_gguf_fail(r, KIT_GGUF_VERSION, 4, GGUF_VERSION, h->version,
                             "the file is written for a machine of the other byte order (big-endian); "
                             "convert the model again");
    }
    if (h->version < 2 || h->version > GGUF_VERSION) {
        return kit_gguf_fail(r, KIT_GGUF_VERSION, 4, GGUF_VERSION, h->version,
                             "GGUF version %" PRIu32 " is not read, only 2 to %d are", h->version,
                             GGUF_VERSION);
    }
    return 0;
}

static int read_count(gguf_reader *r, int64_t *count, uint64_t least_bytes, const char *what) {
    int bad = kit_gguf_take(r, count, 8, what);
    if (bad) return bad;
    if (*count < 0 || *count > MAX_ENTRIES || (uint64_t) *count > r->size / least_bytes) {
        return kit_gguf_fail(r, KIT_GGUF_COUNT, r->at - 8, MAX_ENTRIES, (uint64_t) *count,
                             "%s is %" PRId64 ": a file of %" PRIu64 " bytes has room for at most %" PRIu64
                             ", and at most %d are read",
                             what, *count, r->size, r->size / least_bytes, (int) MAX_ENTRIES);
    }
    return 0;
}

static int walk(gguf_reader *r, kit_gguf_index *index) {
    unsigned char magic[4];
    header h = {0, GGUF_DEFAULT_ALIGNMENT, 0, 0};
    int bad = kit_gguf_take(r, magic, 4, "the magic");
    if (!bad && memcmp(magic, GGUF_MAGIC, 4) != 0) bad = wrong_magic(r, magic);
    if (!bad) bad = read_version(r, &h);
    if (!bad) bad = read_count(r, &h.n_tensors, MIN_TENSOR_BYTES, "the number of tensors");
    if (!bad) bad = read_count(r, &h.n_keys, MIN_KEY_BYTES, "the number of keys");
    if (bad) return bad;
    if (index != NULL) {
        index->n_values = (uint64_t) h.n_keys;
        index->n_tensors = (uint64_t) h.n_tensors;
    }

    gguf_names keys = {0}, tensors = {0};
    extent *extents = NULL;
    bad = walk_keys(r, &h, index, &keys);
    if (!bad) bad = walk_tensors(r, &h, index, &tensors, &extents);
    if (!bad) bad = check_extents(r, &h, &tensors, extents);
    free(extents);
    kit_gguf_names_free(&tensors);
    kit_gguf_names_free(&keys);
    return bad;
}

static int open_regular(gguf_reader *r, const char *path) {
    struct stat facts;
    r->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not make us wait */
    if (r->fd < 0 || fstat(r->fd, &facts) != 0) {
        return kit_gguf_fail(r, KIT_GGUF_SYSTEM, 0, 0, (uint64_t) errno, "%s", strerror(errno));
    }
    if (!S_ISREG(facts.st_mode)) {
        return kit_gguf_fail(r, KIT_GGUF_NOT_A_FILE, 0, 0, facts.st_mode, "%s, not a file",
                             S_ISDIR(facts.st_mode) ? "it is a folder" : "it is a device, pipe or socket");
    }
    r->size = (uint64_t) facts.st_size;
    return r->size > 0 ? 0 : kit_gguf_fail(r, KIT_GGUF_CUT, 0, 0, 0, "the file is empty");
}

int kit_gguf_check(const char *path, kit_gguf_index *index, kit_gguf_problem *problem) {
    memset(problem, 0, sizeof *problem);
    problem->number = -1;
    gguf_reader *r = malloc(sizeof *r);
    if (r == NULL) {
        problem->code = KIT_GGUF_MEMORY;
        snprintf(problem->text, sizeof problem->text, "no memory for the read buffer");
        return problem->code;
    }
    r->at = r->held_from = r->size = 0;
    r->held = 0;
    r->problem = problem;
    int bad = open_regular(r, path);
    if (!bad) bad = walk(r, index);
    if (r->fd >= 0) close(r->fd);
    free(r);
    return bad;
}

int kit_gguf_strings(const char *raw, uint64_t nbytes, uint64_t count, char *text, uint64_t *ends) {
    uint64_t at = 0, end = 0;
    if (count > nbytes / 8) return -1;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t length;
        if (nbytes - at < 8) return -1;
        memcpy(&length, raw + at, 8);
        at += 8;
        if (length > nbytes - at || length > nbytes - 8 * count - end) return -1;
        memcpy(text + end, raw + at, (size_t) length);
        at += length;
        ends[i] = end += length;
    }
    return at == nbytes ? 0 : -1;
}
