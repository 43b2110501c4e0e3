/* What native/gguf_check.c offers. Plain C: gcc includes this file and cffi parses it. */

/* Why a file was refused. */
enum kit_gguf_code {
    KIT_GGUF_SOUND = 0,
    KIT_GGUF_SYSTEM = 1,    /* the operating system said no; `found` is errno */
    KIT_GGUF_NOT_A_FILE = 2,
    KIT_GGUF_MAGIC = 3,
    KIT_GGUF_VERSION = 4,
    KIT_GGUF_COUNT = 5,     /* more keys or tensors than a file of this size can describe */
    KIT_GGUF_CUT = 6,       /* the file ends inside its header */
    KIT_GGUF_NAME = 7,
    KIT_GGUF_DUPLICATE = 8,
    KIT_GGUF_TYPE = 9,
    KIT_GGUF_VALUE = 10,
    KIT_GGUF_ALIGNMENT = 11,
    KIT_GGUF_SHAPE = 12,
    KIT_GGUF_OFFSET = 13,
    KIT_GGUF_DATA_CUT = 14, /* the file ends inside a tensor's data */
    KIT_GGUF_MEMORY = 15
};

/* What `subject` names. */
enum kit_gguf_kind {
    KIT_GGUF_FILE = 0,
    KIT_GGUF_KEY = 1,
    KIT_GGUF_TENSOR = 2
};

typedef struct kit_gguf_problem {
    int32_t code;        /* enum kit_gguf_code */
    int32_t kind;        /* enum kit_gguf_kind */
    int64_t number;      /* position of the key or tensor in the file, from 0; -1 for the file itself */
    uint64_t offset;     /* byte of the file at which the problem lies */
    uint64_t expected;   /* in the unit the text speaks of; 0 where there is none */
    uint64_t found;
    char subject[256];   /* bytes of the key or tensor name as far as they fit; empty while unknown */
    char text[512];      /* ASCII */
} kit_gguf_problem;

/* Where one metadata value lies. Types are enum gguf_type. */
typedef struct kit_gguf_value {
    uint64_t offset;     /* absolute; of an array's first element, of a string's text */
    uint64_t nbytes;     /* for an array of strings, with the 8 length bytes before each */
    uint64_t count;      /* elements; 1 where it is no array */
    int32_t is_array;
    int32_t type;        /* of the value, or of the array's elements */
} kit_gguf_value;

/* Tables lent by the caller; what does not fit is counted and not written. */
typedef struct kit_gguf_index {
    kit_gguf_value *values;
    uint32_t *n_dims;    /* per tensor, as written in the file: ggml forgets trailing ones */
    uint64_t value_room;
    uint64_t tensor_room;
    uint64_t n_values;   /* set by kit_gguf_check */
    uint64_t n_tensors;
} kit_gguf_index;

/* Walks the header of an untrusted file and compares every size in it with the size of the file before
   anything of that size is allocated. Returns 0 where the file is sound: ggml's own reader then accepts it
   and all tensor data lies inside the file. Otherwise returns problem->code. `index` may be NULL. */
int kit_gguf_check(const char *path, kit_gguf_index *index, kit_gguf_problem *problem);

/* Takes apart `count` strings as they lie in a file (8 length bytes, then the text, and so on): their text,
   one after another, goes to `text` (nbytes - 8 * count bytes) and ends[i] is where string i ends in it.
   Returns 0, or -1 where the lengths do not fill `nbytes` exactly. */
int kit_gguf_strings(const char *raw, uint64_t nbytes, uint64_t count, char *text, uint64_t *ends);
