/* Decodes record batches from the wire to Arrow buffers: the compiled form of decoder.py,
 * records.py and columns.py.
 *
 * It takes only the plain case: whole record batches of format 2 in which every byte is valid. Any
 * other batch (compressed, cut off, damaged, with numbers beyond 64 bits, with a wanted record whose
 * timestamp microseconds cannot hold, or of a transaction while some are aborted) is not taken, and
 * nothing of it is kept: Python decodes it, or says what is wrong with it. So only one place judges,
 * and a check that fails here needs no message. A control batch has no rows.
 *
 * Bytes are read only between a pointer and an end, and a length is compared with what is left
 * before it moves the pointer. The part down to RECORD_BATCH_CORE_ONLY does not use Python; the
 * fuzzer (tests/fuzz) is built from only that part.
 */

#ifndef RECORD_BATCH_CORE_ONLY
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#endif

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* ---- numbers --------------------------------------------------------------------------------- */

static inline uint32_t big_endian_32(const uint8_t *p) {
    uint32_t value;
    memcpy(&value, p, sizeof value);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    value = __builtin_bswap32(value);
#endif
    return value;
}

static inline int32_t int32_at(const uint8_t *p) { return (int32_t)big_endian_32(p); }

static inline int64_t int64_at(const uint8_t *p) {
    return (int64_t)(((uint64_t)big_endian_32(p) << 32) | big_endian_32(p + 4));
}

/* Reads a zigzag varint; false if it does not fit 64 bits, or reaches past the end. */
static inline bool read_varint(const uint8_t **position, const uint8_t *end, int64_t *value) {
    const uint8_t *p = *position;
    uint64_t bits = 0;
    for (unsigned shift = 0; p < end; shift += 7) {
        uint8_t byte = *p++;
        if (shift == 63 && byte > 1)
            return false;
        bits |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *value = (int64_t)(bits >> 1) ^ -(int64_t)(bits & 1);
            *position = p;
            return true;
        }
    }
    return false;
}

/* ---- CRC-32C --------------------------------------------------------------------------------- */

/* For a batch of one record, calling the crc32c package would take most of the time. */

static uint32_t crc_table[8][256];

static void fill_crc_table(void) {
    for (uint32_t n = 0; n < 256; n++) {
        uint32_t crc = n;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (crc & 1 ? 0x82F63B78u : 0);
        crc_table[0][n] = crc;
    }
    for (uint32_t n = 0; n < 256; n++)
        for (int slice = 1; slice < 8; slice++)
            crc_table[slice][n] =
                (crc_table[slice - 1][n] >> 8) ^ crc_table[0][crc_table[slice - 1][n] & 0xFF];
}

/* The processor's instruction takes three cycles, and one can begin every cycle. So three strands
 * of the data are processed at once. To combine them, a strand's CRC is advanced over a strand of
 * zero bytes, which is linear in the CRC. A producer's batch of 16 KiB (batch.size) has the three
 * strands five times. */
#define STRAND 1024
static uint32_t after_strand[4][256];

static void fill_after_strand(void) {
    for (int bit = 0; bit < 32; bit++) {
        uint32_t crc = 1u << bit;
        for (int zero = 0; zero < STRAND; zero++)
            crc = (crc >> 8) ^ crc_table[0][crc & 0xFF];
        for (int n = 0; n < 256; n++)
            if (n >> (bit & 7) & 1)
                after_strand[bit >> 3][n] ^= crc;
    }
}

static inline uint32_t put_together(uint32_t crc, uint32_t of_next) {
    return after_strand[0][crc & 0xFF] ^ after_strand[1][crc >> 8 & 0xFF] ^
           after_strand[2][crc >> 16 & 0xFF] ^ after_strand[3][crc >> 24] ^ of_next;
}

static inline uint64_t word_at(const uint8_t *p) {
    uint64_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

/* Uses tables, eight bytes at a time ("slicing by 8"). */
static uint32_t crc32c_portable(const uint8_t *p, size_t size) {
    uint32_t crc = 0xFFFFFFFFu;
    for (; size >= 8; p += 8, size -= 8) {
        uint32_t low = crc ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
                              (uint32_t)p[3] << 24);
        crc = crc_table[7][low & 0xFF] ^ crc_table[6][low >> 8 & 0xFF] ^
              crc_table[5][low >> 16 & 0xFF] ^ crc_table[4][low >> 24] ^ crc_table[3][p[4]] ^
              crc_table[2][p[5]] ^ crc_table[1][p[6]] ^ crc_table[0][p[7]];
    }
    while (size--)
        crc = (crc >> 8) ^ crc_table[0][(crc ^ *p++) & 0xFF];
    return ~crc;
}

#if defined(__x86_64__)
#include <nmmintrin.h>
#define CRC32C_TARGET __attribute__((target("sse4.2")))
#define CRC32C_OF_8 _mm_crc32_u64
#define CRC32C_OF_1 _mm_crc32_u8
typedef uint64_t CrcState; /* so that the compiler does not clear the upper half each time */
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define CRC32C_TARGET
#define CRC32C_OF_8 __crc32cd
#define CRC32C_OF_1 __crc32cb
typedef uint32_t CrcState;
#endif

#ifdef CRC32C_TARGET
CRC32C_TARGET static uint32_t crc32c_by_instruction(const uint8_t *p, size_t size) {
    CrcState crc = 0xFFFFFFFFu;
    for (; size >= 3 * STRAND; p += 3 * STRAND, size -= 3 * STRAND) {
        CrcState second = 0, third = 0;
        for (int at = 0; at < STRAND; at += 8) {
            crc = CRC32C_OF_8(crc, word_at(p + at));
            second = CRC32C_OF_8(second, word_at(p + STRAND + at));
            third = CRC32C_OF_8(third, word_at(p + 2 * STRAND + at));
        }
        crc = put_together(put_together((uint32_t)crc, (uint32_t)second), (uint32_t)third);
    }
    for (; size >= 8; p += 8, size -= 8)
        crc = CRC32C_OF_8(crc, word_at(p));
    while (size--)
        crc = CRC32C_OF_1((uint32_t)crc, *p++);
    return ~(uint32_t)crc;
}
#endif

static uint32_t (*crc32c)(const uint8_t *, size_t) = crc32c_portable;

static void choose_crc32c(void) {
    fill_crc_table();
    fill_after_strand();
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("sse4.2"))
        crc32c = crc32c_by_instruction;
#elif defined(CRC32C_TARGET)
    crc32c = crc32c_by_instruction;
#endif
}

/* ---- columns --------------------------------------------------------------------------------- */

typedef struct {
    uint8_t *data;
    size_t size;
    size_t capacity;
} Buffer;

/* Makes room for this many more bytes; the buffer has memory afterwards, even for 0. */
static bool reserve(Buffer *buffer, size_t more) {
    if (more < buffer->capacity - buffer->size)
        return true;
    if (more > SIZE_MAX / 4 - buffer->size)
        return false;
    size_t capacity = buffer->capacity < 1024 ? 1024 : buffer->capacity;
    while (capacity <= buffer->size + more)
        capacity *= 2;
    uint8_t *data = realloc(buffer->data, capacity);
    if (data == NULL)
        return false;
    buffer->data = data;
    buffer->capacity = capacity;
    return true;
}

static inline void push_int32(Buffer *buffer, int32_t value) {
    memcpy(buffer->data + buffer->size, &value, sizeof value);
    buffer->size += sizeof value;
}

static inline void push_int64(Buffer *buffer, int64_t value) {
    memcpy(buffer->data + buffer->size, &value, sizeof value);
    buffer->size += sizeof value;
}

/* A column of byte strings. The bitmap of the nulls is made only when the column is handed over. */
typedef struct {
    Buffer ends;  /* int32: where each string ends in data */
    Buffer data;
    Buffer nulls; /* int32: the rows that are null, in order */
} Strings;

static bool reserve_strings(Strings *strings, size_t rows, size_t bytes) {
    return reserve(&strings->ends, rows * sizeof(int32_t)) && reserve(&strings->data, bytes) &&
           reserve(&strings->nulls, rows * sizeof(int32_t));
}

/* Appends a string; NULL is null. There must be room. */
static inline void push_string(Strings *strings, const uint8_t *bytes, size_t size) {
    if (bytes == NULL) {
        push_int32(&strings->nulls, (int32_t)(strings->ends.size / sizeof(int32_t)));
    } else {
        memcpy(strings->data.data + strings->data.size, bytes, size);
        strings->data.size += size;
    }
    push_int32(&strings->ends, (int32_t)strings->data.size);
}

/* All offsets into a column's data are 32 bits wide. */
static inline bool fits(const Strings *strings, size_t more) {
    return more <= (size_t)INT32_MAX - strings->data.size;
}

typedef struct {
    size_t rows;
    size_t bytes; /* roughly the memory that the rows hold: the size of what they come from */
    bool with_headers;
    Strings keys, values;
    Buffer offsets, timestamps; /* int64; microseconds since the epoch */
    Buffer timestamp_nulls;     /* int32: the rows whose timestamp is null; only Python appends any */
    Buffer timestamp_types;     /* int32 */
    Buffer header_ends;         /* int32: how many headers there are up to each row */
    Buffer header_nulls;        /* int32: the rows without headers */
    Strings header_keys, header_values;
} Columns;

#define BUFFERS(columns)                                                                           \
    {                                                                                              \
        &(columns)->keys.ends, &(columns)->keys.data, &(columns)->keys.nulls,                      \
            &(columns)->values.ends, &(columns)->values.data, &(columns)->values.nulls,            \
            &(columns)->offsets, &(columns)->timestamps, &(columns)->timestamp_nulls,              \
            &(columns)->timestamp_types, &(columns)->header_ends, &(columns)->header_nulls,        \
            &(columns)->header_keys.ends, &(columns)->header_keys.data,                            \
            &(columns)->header_keys.nulls, &(columns)->header_values.ends,                         \
            &(columns)->header_values.data, &(columns)->header_values.nulls                        \
    }
#define BUFFER_COUNT 18

static void free_columns(Columns *columns) {
    Buffer *buffers[] = BUFFERS(columns);
    for (int i = 0; i < BUFFER_COUNT; i++) {
        free(buffers[i]->data);
        memset(buffers[i], 0, sizeof(Buffer));
    }
    columns->rows = columns->bytes = 0;
}

/* Drops the rows appended since `before` was copied from the columns. */
static void take_back(Columns *columns, const Columns *before) {
    Buffer *buffers[] = BUFFERS(columns);
    const Buffer *sizes[] = BUFFERS(before);
    for (int i = 0; i < BUFFER_COUNT; i++)
        buffers[i]->size = sizes[i]->size;
    columns->rows = before->rows;
    columns->bytes = before->bytes;
}

static bool reserve_rows(Columns *columns, size_t rows, size_t bytes) {
    if (rows > INT32_MAX - columns->rows || !fits(&columns->keys, bytes) ||
        !fits(&columns->values, bytes))
        return false;
    if (columns->with_headers && !(reserve(&columns->header_ends, rows * sizeof(int32_t)) &&
                                   reserve(&columns->header_nulls, rows * sizeof(int32_t))))
        return false;
    return reserve_strings(&columns->keys, rows, bytes) &&
           reserve_strings(&columns->values, rows, bytes) &&
           reserve(&columns->offsets, rows * sizeof(int64_t)) &&
           reserve(&columns->timestamps, rows * sizeof(int64_t)) &&
           reserve(&columns->timestamp_types, rows * sizeof(int32_t));
}

static inline size_t header_count(const Columns *columns) {
    return columns->header_keys.ends.size / sizeof(int32_t);
}

/* Appends a row, whose headers are in header_keys and header_values already. There must be room. */
static inline void push_row(Columns *columns, const uint8_t *key, size_t key_size,
                            const uint8_t *value, size_t value_size, int64_t offset,
                            int64_t timestamp_us, int32_t timestamp_type, bool has_headers) {
    push_string(&columns->keys, key, key_size);
    push_string(&columns->values, value, value_size);
    push_int64(&columns->offsets, offset);
    push_int64(&columns->timestamps, timestamp_us);
    push_int32(&columns->timestamp_types, timestamp_type);
    if (columns->with_headers) {
        if (!has_headers)
            push_int32(&columns->header_nulls, (int32_t)columns->rows);
        push_int32(&columns->header_ends, (int32_t)header_count(columns));
    }
    columns->rows++;
}

static bool push_header(Columns *columns, const uint8_t *key, size_t key_size,
                        const uint8_t *value, size_t value_size) {
    if (!fits(&columns->header_keys, key_size) || !fits(&columns->header_values, value_size) ||
        header_count(columns) >= INT32_MAX ||
        !reserve_strings(&columns->header_keys, 1, key_size) ||
        !reserve_strings(&columns->header_values, 1, value_size))
        return false;
    push_string(&columns->header_keys, key, key_size);
    push_string(&columns->header_values, value, value_size);
    return true;
}

/* ---- records --------------------------------------------------------------------------------- */

/* As in records.py: milliseconds that fit 64 bits as microseconds. */
#define MAX_TIMESTAMP_MS (INT64_MAX / 1000 - (1 << 13))
/* Length, attributes, two deltas, key, value, headers: a byte each. */
#define SMALLEST_RECORD 7

/* Whether Python's strict UTF-8 decoder accepts this; other header keys are repaired in Python. */
static bool is_utf8(const uint8_t *p, size_t size) {
    const uint8_t *end = p + size;
    while (p < end) {
        uint8_t first = *p++;
        if (first < 0x80)
            continue;
        int following = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
        if (first < 0xC2 || first > 0xF4 || end - p < following)
            return false;
        /* No longer than needed, no surrogates, nothing past U+10FFFF. */
        uint8_t lowest = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
        uint8_t highest = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
        if (*p < lowest || *p > highest)
            return false;
        for (int i = 1; i < following; i++)
            if ((p[i] & 0xC0) != 0x80)
                return false;
        p += following;
    }
    return true;
}

/* Reads a byte string, preceded by its length; NULL for a negative length. */
static inline bool read_string(const uint8_t **position, const uint8_t *end, const uint8_t **bytes,
                               size_t *size) {
    int64_t length;
    if (!read_varint(position, end, &length))
        return false;
    *bytes = NULL;
    *size = 0;
    if (length < 0)
        return true;
    if (length > end - *position)
        return false;
    *bytes = *position;
    *size = (size_t)length;
    *position += length;
    return true;
}

static bool read_headers(Columns *columns, bool keep, const uint8_t **position,
                         const uint8_t *end, int64_t count) {
    /* The shortest header is an empty key and a null value. */
    if (count < 0 || count > (end - *position) / 2)
        return false;
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *key, *value;
        size_t key_size, value_size;
        if (!read_string(position, end, &key, &key_size) || key == NULL ||
            !read_string(position, end, &value, &value_size))
            return false;
        if (keep && !(is_utf8(key, key_size) &&
                      push_header(columns, key, key_size, value, value_size)))
            return false;
    }
    return true;
}

typedef struct {
    int64_t count;
    int64_t base_offset;
    int64_t base_timestamp_ms;
    bool same_timestamp; /* the whole batch has one: when it was appended */
    int64_t from, to;    /* the wanted offsets: inclusive, exclusive */
} Wanted;

static bool read_records(Columns *columns, const uint8_t *p, const uint8_t *end,
                         const Wanted *wanted) {
    if (wanted->count < 0 || wanted->count > (end - p) / SMALLEST_RECORD ||
        !reserve_rows(columns, (size_t)wanted->count, (size_t)(end - p)))
        return false;
    for (int64_t i = 0; i < wanted->count; i++) {
        int64_t length, timestamp_delta, offset_delta, headers, offset;
        int64_t timestamp = wanted->base_timestamp_ms;
        const uint8_t *key, *value;
        size_t key_size, value_size;
        /* At least the attributes; none are defined. */
        if (!read_varint(&p, end, &length) || length < 1 || length > end - p)
            return false;
        const uint8_t *record_end = p + length;
        p++;
        if (!read_varint(&p, record_end, &timestamp_delta) ||
            !read_varint(&p, record_end, &offset_delta) ||
            !read_string(&p, record_end, &key, &key_size) ||
            !read_string(&p, record_end, &value, &value_size) ||
            !read_varint(&p, record_end, &headers))
            return false;
        if (__builtin_add_overflow(wanted->base_offset, offset_delta, &offset))
            return false;
        bool keep = offset >= wanted->from && offset < wanted->to;
        bool overflow = !wanted->same_timestamp &&
                        __builtin_add_overflow(timestamp, timestamp_delta, &timestamp);
        if (keep && (overflow || timestamp < -MAX_TIMESTAMP_MS || timestamp > MAX_TIMESTAMP_MS))
            return false; /* Python makes it null, and says so */
        if (headers != 0 &&
            !read_headers(columns, keep && columns->with_headers, &p, record_end, headers))
            return false;
        if (p != record_end)
            return false;
        if (keep)
            push_row(columns, key, key_size, value, value_size, offset, timestamp * 1000,
                     wanted->same_timestamp, headers != 0);
    }
    return p == end;
}

/* Appends the wanted records of a batch: all of them, or none and false. */
static bool append_records(Columns *columns, const uint8_t *payload, size_t size,
                           const Wanted *wanted) {
    const Columns before = *columns;
    if (!read_records(columns, payload, payload + size, wanted)) {
        take_back(columns, &before);
        return false;
    }
    columns->bytes += size;
    return true;
}

/* ---- record batches -------------------------------------------------------------------------- */

#define LOG_OVERHEAD 12 /* base offset, length */
#define MAGIC_AT 16
#define CRC_START 21
#define HEADER_SIZE 61
#define CODEC_MASK 0x07
#define LOG_APPEND_TIME_FLAG 0x08
#define TRANSACTIONAL_FLAG 0x10
#define CONTROL_FLAG 0x20

typedef struct {
    int64_t base_offset, last_offset;
    size_t size;
} Batch;

/* Reads the header of a whole batch of format 2 that begins before `to`; false if it is none. */
static bool read_batch(const uint8_t *p, size_t available, int64_t to, Batch *batch) {
    if (available < HEADER_SIZE || p[MAGIC_AT] != 2)
        return false;
    batch->base_offset = int64_at(p);
    int64_t size = (int64_t)int32_at(p + 8) + LOG_OVERHEAD;
    if (batch->base_offset < 0 || batch->base_offset >= to || size < HEADER_SIZE ||
        (uint64_t)size > available)
        return false;
    batch->size = (size_t)size;
    int32_t delta = int32_at(p + 23);
    return delta >= 0 &&
           !__builtin_add_overflow(batch->base_offset, (int64_t)delta, &batch->last_offset);
}

typedef struct {
    bool check_crcs;
    bool transactions; /* read_committed, and some are aborted */
    int64_t from, to;
    size_t full_rows, full_bytes; /* stop when the columns hold this many */
} Extent;

/* Appends the plain batches from `at` on. Returns where the first begins that was not taken. */
static size_t extend(Columns *columns, const uint8_t *records, size_t size, size_t at,
                     const Extent *extent) {
    Batch batch;
    while (columns->rows < extent->full_rows && columns->bytes < extent->full_bytes &&
           read_batch(records + at, size - at, extent->to, &batch)) {
        const uint8_t *p = records + at;
        int attributes = p[22];
        int32_t count = int32_at(p + 57);
        if (count < 0)
            break;
        if (extent->transactions && int64_at(p + 43) >= 0 &&
            attributes & (CONTROL_FLAG | TRANSACTIONAL_FLAG))
            break;
        if (extent->check_crcs && crc32c(p + CRC_START, batch.size - CRC_START) != big_endian_32(p + 17))
            break;
        if (count > 0 && !(attributes & CONTROL_FLAG) && batch.last_offset >= extent->from) {
            bool append_time = attributes & LOG_APPEND_TIME_FLAG;
            Wanted wanted = {count,       batch.base_offset, int64_at(p + (append_time ? 35 : 27)),
                             append_time, extent->from,      extent->to};
            if (attributes & CODEC_MASK ||
                !append_records(columns, p + HEADER_SIZE, batch.size - HEADER_SIZE, &wanted))
                break;
        }
        at += batch.size;
    }
    return at;
}

/* Finds, for the plain batches at the beginning, the offset after the last one and its leader epoch
 * (both -1 if there is no plain one). Returns where the first batch begins that is not plain. */
static size_t skim(const uint8_t *records, size_t size, int64_t to, int64_t *after,
                   int32_t *leader_epoch) {
    Batch batch;
    size_t at = 0;
    *after = *leader_epoch = -1;
    while (read_batch(records + at, size - at, to, &batch) && batch.last_offset < INT64_MAX) {
        if (batch.last_offset >= *after)
            *after = batch.last_offset + 1;
        *leader_epoch = int32_at(records + at + LOG_OVERHEAD);
        at += batch.size;
    }
    return at;
}

#ifndef RECORD_BATCH_CORE_ONLY

/* ---- Python ---------------------------------------------------------------------------------- */

/* Anything shorter is done sooner than the GIL could be taken again. */
#define RELEASE_GIL_FROM_BYTES (32 * 1024)

typedef struct {
    PyObject_HEAD
    Columns columns;
    bool busy; /* in use without the GIL */
} ColumnsObject;

static PyObject *new_columns(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"with_headers", NULL};
    int with_headers;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "p:Columns", names, &with_headers))
        return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    ColumnsObject *self = (ColumnsObject *)allocate(type, 0); /* zeroed */
    if (self != NULL)
        self->columns.with_headers = with_headers;
    return (PyObject *)self;
}

static void dealloc_columns(ColumnsObject *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    free_columns(&self->columns);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static bool acquire(ColumnsObject *self) {
    if (self->busy)
        PyErr_SetString(PyExc_RuntimeError, "another thread appends to these columns");
    return !self->busy;
}

PyDoc_STRVAR(extend_doc,
             "extend($self, records, at, start, end, check_crcs, transactions, full_rows, "
             "full_bytes, /)\n--\n\n"
             "Append the plain record batches from byte `at` on, until the columns are full; return "
             "where the first begins that was not taken. Rows with start <= offset < end are "
             "wanted. With `transactions` those of transactions are not taken either.");

static PyObject *columns_extend(ColumnsObject *self, PyObject *args) {
    Py_buffer records;
    Py_ssize_t at, full_rows, full_bytes;
    long long from, to;
    int check_crcs, transactions;
    if (!PyArg_ParseTuple(args, "y*nLLppnn:extend", &records, &at, &from, &to, &check_crcs,
                          &transactions, &full_rows, &full_bytes))
        return NULL;
    size_t stopped = 0;
    if (at < 0 || at > records.len || full_rows < 0 || full_bytes < 0) {
        PyErr_SetString(PyExc_ValueError, "out of range");
    } else if (acquire(self)) {
        Extent extent = {check_crcs, transactions, from, to, (size_t)full_rows,
                         (size_t)full_bytes};
        PyThreadState *state = NULL;
        self->busy = true;
        if (records.len - at >= RELEASE_GIL_FROM_BYTES)
            state = PyEval_SaveThread();
        stopped = extend(&self->columns, records.buf, (size_t)records.len, (size_t)at, &extent);
        if (state != NULL)
            PyEval_RestoreThread(state);
        self->busy = false;
    }
    PyBuffer_Release(&records);
    return PyErr_Occurred() ? NULL : PyLong_FromSize_t(stopped);
}

PyDoc_STRVAR(append_records_doc,
             "append_records($self, payload, first, limit, count, base_offset, base_timestamp, "
             "same_timestamp, start, end, /)\n--\n\n"
             "As the function in records.py: append the records in payload[first:limit] that are "
             "wanted. Returns False, with nothing appended, if they are not as they should be.");

static PyObject *columns_append_records(ColumnsObject *self, PyObject *args) {
    Py_buffer payload;
    Py_ssize_t first, limit;
    long long count, base_offset, base_timestamp, from, to;
    int same_timestamp;
    if (!PyArg_ParseTuple(args, "y*nnLLLpLL:append_records", &payload, &first, &limit, &count,
                          &base_offset, &base_timestamp, &same_timestamp, &from, &to))
        return NULL;
    bool taken = false;
    if (first < 0 || first > limit || limit > payload.len) {
        PyErr_SetString(PyExc_ValueError, "out of range");
    } else if (acquire(self)) {
        Wanted wanted = {count, base_offset, base_timestamp, same_timestamp, from, to};
        PyThreadState *state = NULL;
        self->busy = true;
        if (limit - first >= RELEASE_GIL_FROM_BYTES)
            state = PyEval_SaveThread();
        taken = append_records(&self->columns, (const uint8_t *)payload.buf + first,
                               (size_t)(limit - first), &wanted);
        if (state != NULL)
            PyEval_RestoreThread(state);
        self->busy = false;
    }
    PyBuffer_Release(&payload);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(taken);
}

/* Takes a bytes object, or None for null. */
static bool bytes_or_none(PyObject *object, const uint8_t **bytes, size_t *size) {
    char *data = NULL;
    Py_ssize_t length = 0;
    if (object != Py_None && PyBytes_AsStringAndSize(object, &data, &length) < 0)
        return false;
    *bytes = (const uint8_t *)data;
    *size = (size_t)length;
    return true;
}

static bool push_header_object(Columns *columns, PyObject *header) {
    PyObject *key_object, *value_object;
    const uint8_t *key, *value;
    size_t key_size, value_size;
    if (!PyArg_ParseTuple(header, "SO:header", &key_object, &value_object) ||
        !bytes_or_none(key_object, &key, &key_size) ||
        !bytes_or_none(value_object, &value, &value_size))
        return false;
    if (!push_header(columns, key, key_size, value, value_size)) {
        PyErr_NoMemory();
        return false;
    }
    return true;
}

static bool push_header_objects(Columns *columns, PyObject *headers) {
    for (Py_ssize_t i = 0; i < PyList_Size(headers); i++)
        if (!push_header_object(columns, PyList_GetItem(headers, i)))
            return false;
    return true;
}

PyDoc_STRVAR(append_row_doc,
             "append_row($self, key, value, offset, timestamp_us, timestamp_type, headers, /)"
             "\n--\n\n"
             "Append a row that was decoded in Python. The timestamp may be None. Headers are None "
             "or a list of (bytes, bytes or None).");

static PyObject *columns_append_row(ColumnsObject *self, PyObject *args) {
    PyObject *key_object, *value_object, *timestamp_object, *headers;
    long long offset, timestamp_us = 0;
    int timestamp_type;
    const uint8_t *key, *value;
    size_t key_size, value_size;
    if (!PyArg_ParseTuple(args, "OOLOiO:append_row", &key_object, &value_object, &offset,
                          &timestamp_object, &timestamp_type, &headers) ||
        !bytes_or_none(key_object, &key, &key_size) ||
        !bytes_or_none(value_object, &value, &value_size) || !acquire(self))
        return NULL;
    bool no_timestamp = timestamp_object == Py_None;
    if (!no_timestamp) {
        timestamp_us = PyLong_AsLongLong(timestamp_object);
        if (PyErr_Occurred())
            return NULL;
    }
    Columns *columns = &self->columns;
    const Columns before = *columns;
    if (!reserve_rows(columns, 1, key_size > value_size ? key_size : value_size) ||
        !reserve(&columns->timestamp_nulls, sizeof(int32_t)))
        return PyErr_NoMemory();
    if (columns->with_headers && headers != Py_None && !push_header_objects(columns, headers)) {
        take_back(columns, &before);
        return NULL;
    }
    if (no_timestamp)
        push_int32(&columns->timestamp_nulls, (int32_t)columns->rows);
    push_row(columns, key, key_size, value, value_size, offset, timestamp_us, timestamp_type,
             headers != Py_None);
    Py_RETURN_NONE;
}

static void free_memory(PyObject *capsule) { free(PyCapsule_GetPointer(capsule, NULL)); }

/* Returns (address, size, owner); the memory now belongs to the owner. */
static PyObject *hand_over(Buffer *buffer) {
    if (!reserve(buffer, 0))
        return PyErr_NoMemory();
    PyObject *owner = PyCapsule_New(buffer->data, NULL, free_memory);
    if (owner == NULL)
        return NULL;
    PyObject *described =
        Py_BuildValue("(KnN)", (unsigned long long)(uintptr_t)buffer->data,
                      (Py_ssize_t)buffer->size, owner);
    memset(buffer, 0, sizeof *buffer);
    return described;
}

/* Adds the 0 that Arrow's offsets begin with. */
static PyObject *hand_over_ends(const Buffer *ends) {
    Buffer offsets = {0};
    if (!reserve(&offsets, sizeof(int32_t) + ends->size))
        return PyErr_NoMemory();
    push_int32(&offsets, 0);
    if (ends->size)
        memcpy(offsets.data + sizeof(int32_t), ends->data, ends->size);
    offsets.size += ends->size;
    PyObject *described = hand_over(&offsets);
    free(offsets.data);
    return described;
}

/* Returns (bitmap or None, how many are null). */
static PyObject *hand_over_validity(const Buffer *nulls, size_t rows) {
    size_t count = nulls->size / sizeof(int32_t);
    if (count == 0)
        return Py_BuildValue("(On)", Py_None, (Py_ssize_t)0);
    Buffer bitmap = {0};
    size_t size = (rows + 7) / 8;
    if (!reserve(&bitmap, size))
        return PyErr_NoMemory();
    memset(bitmap.data, 0xFF, size);
    if (rows % 8)
        bitmap.data[size - 1] = (uint8_t)((1 << rows % 8) - 1);
    for (size_t i = 0; i < count; i++) {
        int32_t row;
        memcpy(&row, nulls->data + i * sizeof row, sizeof row);
        bitmap.data[row / 8] &= (uint8_t)~(1 << row % 8);
    }
    bitmap.size = size;
    PyObject *described = hand_over(&bitmap);
    free(bitmap.data);
    return described == NULL ? NULL : Py_BuildValue("(Nn)", described, (Py_ssize_t)count);
}

static PyObject *hand_over_strings(Strings *strings) {
    size_t rows = strings->ends.size / sizeof(int32_t);
    PyObject *validity = hand_over_validity(&strings->nulls, rows);
    PyObject *offsets = validity == NULL ? NULL : hand_over_ends(&strings->ends);
    PyObject *data = offsets == NULL ? NULL : hand_over(&strings->data);
    if (data == NULL) {
        Py_XDECREF(offsets);
        Py_XDECREF(validity);
        return NULL;
    }
    return Py_BuildValue("(nNNN)", (Py_ssize_t)rows, validity, offsets, data);
}

PyDoc_STRVAR(take_doc,
             "take($self, /)\n--\n\n"
             "Hand the rows over, and be empty. A tuple of keys, values, offsets, timestamps, their "
             "validity, timestamp types, and, with headers: their ends, validity, keys and values. "
             "A buffer is (address, bytes, owner); strings are (rows, validity, offsets, data), a "
             "validity is (bitmap or None, how many are null).");

static PyObject *columns_take(ColumnsObject *self, PyObject *Py_UNUSED(none)) {
    if (!acquire(self))
        return NULL;
    Columns *columns = &self->columns;
    PyObject *taken = PyTuple_New(columns->with_headers ? 10 : 6);
    if (taken == NULL)
        return NULL;
    PyObject *items[10] = {0};
    items[0] = hand_over_strings(&columns->keys);
    items[1] = hand_over_strings(&columns->values);
    items[2] = hand_over(&columns->offsets);
    items[3] = hand_over(&columns->timestamps);
    items[4] = hand_over_validity(&columns->timestamp_nulls, columns->rows);
    items[5] = hand_over(&columns->timestamp_types);
    if (columns->with_headers) {
        items[6] = hand_over_ends(&columns->header_ends);
        items[7] = hand_over_validity(&columns->header_nulls, columns->rows);
        items[8] = hand_over_strings(&columns->header_keys);
        items[9] = hand_over_strings(&columns->header_values);
    }
    bool complete = true;
    for (Py_ssize_t i = 0; i < PyTuple_Size(taken); i++) {
        complete = complete && items[i] != NULL;
        if (items[i] != NULL)
            PyTuple_SetItem(taken, i, items[i]);
    }
    free_columns(columns);
    if (!complete) {
        Py_DECREF(taken);
        return NULL;
    }
    return taken;
}

static Py_ssize_t columns_length(ColumnsObject *self) { return (Py_ssize_t)self->columns.rows; }

static PyObject *columns_bytes(ColumnsObject *self, void *Py_UNUSED(closure)) {
    return PyLong_FromSize_t(self->columns.bytes);
}

static int set_columns_bytes(ColumnsObject *self, PyObject *value, void *Py_UNUSED(closure)) {
    size_t bytes = value == NULL ? 0 : PyLong_AsSize_t(value);
    if (PyErr_Occurred())
        return -1;
    self->columns.bytes = bytes;
    return 0;
}

static PyMethodDef columns_methods[] = {
    {"extend", (PyCFunction)columns_extend, METH_VARARGS, extend_doc},
    {"append_records", (PyCFunction)columns_append_records, METH_VARARGS, append_records_doc},
    {"append_row", (PyCFunction)columns_append_row, METH_VARARGS, append_row_doc},
    {"take", (PyCFunction)columns_take, METH_NOARGS, take_doc},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef columns_properties[] = {
    {"bytes", (getter)columns_bytes, (setter)set_columns_bytes,
     "What the rows hold in memory, roughly: the size of what they were decoded from.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(columns_doc, "Columns(with_headers)\n--\n\nRows of one partition, column by column.");

static PyType_Slot columns_slots[] = {
    {Py_tp_doc, (void *)columns_doc},
    {Py_tp_new, new_columns},
    {Py_tp_dealloc, dealloc_columns},
    {Py_tp_methods, columns_methods},
    {Py_tp_getset, columns_properties},
    {Py_sq_length, columns_length},
    {0, NULL},
};

static PyType_Spec columns_spec = {
    .name = "pyspark_kafka_rebalance.fetch._record_batch.Columns",
    .basicsize = sizeof(ColumnsObject),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = columns_slots,
};

PyDoc_STRVAR(skim_doc,
             "skim(records, end, /)\n--\n\n"
             "The offset after the last of the plain record batches from the beginning on, its "
             "leader epoch (-1 both if there are none), and where the first begins that is not "
             "plain.");

static PyObject *module_skim(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer records;
    long long to;
    if (!PyArg_ParseTuple(args, "y*L:skim", &records, &to))
        return NULL;
    int64_t after;
    int32_t leader_epoch;
    size_t at = skim(records.buf, (size_t)records.len, to, &after, &leader_epoch);
    PyBuffer_Release(&records);
    return Py_BuildValue("(Lin)", (long long)after, (int)leader_epoch, (Py_ssize_t)at);
}

PyDoc_STRVAR(crc32c_doc, "crc32c(data, /)\n--\n\nThe CRC-32C of a buffer.");

static PyObject *module_crc32c(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer data;
    if (!PyArg_ParseTuple(args, "y*:crc32c", &data))
        return NULL;
    uint32_t crc = crc32c(data.buf, (size_t)data.len);
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(crc);
}

PyDoc_STRVAR(crc32c_portable_doc,
             "crc32c_portable(data, /)\n--\n\nThe same without the processor's instruction.");

static PyObject *module_crc32c_portable(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer data;
    if (!PyArg_ParseTuple(args, "y*:crc32c_portable", &data))
        return NULL;
    uint32_t crc = crc32c_portable(data.buf, (size_t)data.len);
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(crc);
}

/* The garbage collector tracks everything that may be in a cycle, and a named tuple for as long as
 * it lives. Some hundred records are alive at any time and are gone with the next poll. Those that
 * a collection meets are counted as long-lived and bring the next full collection of the process
 * nearer, which stops every thread.
 *
 * An empty list holds nothing. If an application puts the record itself into it, reference counting
 * will not free the two: that is the price. */

PyDoc_STRVAR(untrack_doc,
             "untrack(record, /)\n--\n\n"
             "Leave a tuple of plain values, with its empty lists, to reference counting alone. One "
             "that holds anything else that may be in a cycle stays as it is.");

static PyObject *module_untrack(PyObject *Py_UNUSED(module), PyObject *record) {
    if (!PyTuple_Check(record)) {
        PyErr_SetString(PyExc_TypeError, "untrack() takes a tuple");
        return NULL;
    }
    Py_ssize_t size = PyTuple_Size(record);
    for (Py_ssize_t at = 0; at < size; at++) {
        PyObject *item = PyTuple_GetItem(record, at);
        if (item == NULL)
            return NULL;
        if (!PyType_IS_GC(Py_TYPE(item)) || (PyList_CheckExact(item) && PyList_Size(item) == 0))
            continue;
        Py_RETURN_NONE;
    }
    for (Py_ssize_t at = 0; at < size; at++) {
        PyObject *item = PyTuple_GetItem(record, at);
        if (PyList_CheckExact(item))
            PyObject_GC_UnTrack(item);
    }
    PyObject_GC_UnTrack(record);
    Py_RETURN_NONE;
}

static PyMethodDef module_methods[] = {
    {"skim", module_skim, METH_VARARGS, skim_doc},
    {"crc32c", module_crc32c, METH_VARARGS, crc32c_doc},
    {"crc32c_portable", module_crc32c_portable, METH_VARARGS, crc32c_portable_doc},
    {"untrack", module_untrack, METH_O, untrack_doc},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(module_doc, "Record batches to Arrow buffers, compiled.");

static struct PyModuleDef module_definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_record_batch",
    .m_doc = module_doc,
    .m_size = -1,
    .m_methods = module_methods,
};

PyMODINIT_FUNC PyInit__record_batch(void) {
    choose_crc32c();
    PyObject *module = PyModule_Create(&module_definition);
    if (module == NULL)
        return NULL;
    PyObject *type = PyType_FromSpec(&columns_spec);
    if (type == NULL || PyModule_AddObject(module, "Columns", type) < 0) {
        Py_XDECREF(type);
        Py_DECREF(module);
        return NULL;
    }
    return module;
}

#endif
