/* Encodes Arrow columns, or records one by one, to record batches of format 2: the compiled form of
 * python_encoder.py and python_records.py, and of what is computed in partitioner.py and
 * batch_header.py. What it writes equals what they write, byte for byte.
 *
 * Python judges: rows that cannot be encoded are found here, and Python says what is wrong. Offsets
 * inside Arrow's buffers are compared with the sizes of the buffers before they are used, so an
 * array that lies about itself is refused. The part down to ENCODER_CORE_ONLY does not use Python;
 * the fuzzer (tests/fuzz) is built from only that part.
 *
 * Big-endian numbers, CRC-32C and growing buffers are those of the decoder's core.
 */

#ifndef ENCODER_CORE_ONLY
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <structmember.h>
#include <time.h>
#endif

#define RECORD_BATCH_CORE_ONLY
#include "../../fetch/_record_batch.c"

/* ---- numbers --------------------------------------------------------------------------------- */

static inline uint64_t zigzag(int64_t value) {
    return ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
}

static inline size_t varint_size(int64_t value) {
    return (size_t)(63 - __builtin_clzll(zigzag(value) | 1)) / 7 + 1;
}

static inline uint8_t *write_varint(uint8_t *p, int64_t value) {
    uint64_t bits = zigzag(value);
    for (; bits > 0x7F; bits >>= 7)
        *p++ = (uint8_t)(bits | 0x80);
    *p++ = (uint8_t)bits;
    return p;
}

static inline void write_big_endian(uint8_t *p, uint64_t value, int bytes) {
    for (int i = bytes - 1; i >= 0; i--, value >>= 8)
        p[i] = (uint8_t)value;
}

/* ---- partitions ------------------------------------------------------------------------------ */

/* Utils.murmur2 of Java's client. */
static uint32_t murmur2(const uint8_t *p, size_t size) {
    const uint32_t m = 0x5BD1E995u;
    uint32_t hash = 0x9747B28Cu ^ (uint32_t)size;
    for (; size >= 4; p += 4, size -= 4) {
        uint32_t word = ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
                         (uint32_t)p[3] << 24) * m;
        hash = hash * m ^ (word ^ word >> 24) * m;
    }
    if (size) {
        for (size_t i = 0; i < size; i++)
            hash ^= (uint32_t)p[i] << (8 * i);
        hash *= m;
    }
    hash = (hash ^ hash >> 13) * m;
    return hash ^ hash >> 15;
}

static inline int32_t partition_of_key(const uint8_t *key, size_t size, int32_t partitions) {
    return (int32_t)(murmur2(key, size) & 0x7FFFFFFFu) % partitions;
}

/* ---- records --------------------------------------------------------------------------------- */

typedef struct {
    const uint8_t *bytes; /* NULL for null */
    size_t size;
} Text;

typedef struct {
    Text key, value;
} Header;

typedef struct {
    Text key, value;
    const Header *headers;
    size_t header_count;
    int64_t timestamp_ms;
} Record;

typedef struct {
    size_t batch_bytes;
    int32_t batch_records;
    size_t max_request_bytes; /* at most 2^30 */
} Limits;

/* Beside key, value and headers a record takes at most this much: Java's MAX_RECORD_OVERHEAD. */
#define RECORD_OVERHEAD 21

static inline size_t text_size(Text text) {
    return text.bytes == NULL ? 1 : varint_size((int64_t)text.size) + text.size;
}

static inline uint8_t *write_text(uint8_t *p, Text text) {
    if (text.bytes == NULL) {
        *p++ = 1; /* a length of -1 */
        return p;
    }
    p = write_varint(p, (int64_t)text.size);
    memcpy(p, text.bytes, text.size);
    return p + text.size;
}

/* What is behind the deltas; stops counting where it is too large in any case. */
static size_t body_size(const Record *record, const Limits *limits) {
    size_t size = text_size(record->key) + text_size(record->value) +
                  varint_size((int64_t)record->header_count);
    for (size_t i = 0; i < record->header_count && size <= limits->max_request_bytes; i++)
        size += text_size(record->headers[i].key) + text_size(record->headers[i].value);
    return size;
}

/* The most that a batch of this one record takes, as Java estimates it. */
static inline size_t most_bytes(size_t body) { return HEADER_SIZE + RECORD_OVERHEAD + body; }

/* ---- batches --------------------------------------------------------------------------------- */

typedef struct {
    Buffer data; /* with room for the header in front, unless there are no records */
    int32_t count;
    int64_t base_timestamp, max_timestamp;
} OpenBatch;

typedef enum { APPENDED, FULL, NO_MEMORY } Appended;

static Appended append_record(OpenBatch *batch, const Record *record, size_t body,
                              const Limits *limits) {
    int64_t base = batch->count ? batch->base_timestamp : record->timestamp_ms;
    int64_t delta = (int64_t)((uint64_t)record->timestamp_ms - (uint64_t)base);
    size_t length = 1 + varint_size(delta) + varint_size(batch->count) + body;
    size_t size = varint_size((int64_t)length) + length;
    if (batch->count == 0) {
        if (!reserve(&batch->data, HEADER_SIZE + size))
            return NO_MEMORY;
        memset(batch->data.data, 0, HEADER_SIZE);
        batch->data.size = HEADER_SIZE;
        batch->base_timestamp = batch->max_timestamp = record->timestamp_ms;
    } else if (batch->data.size + size > limits->batch_bytes ||
               batch->count >= limits->batch_records) {
        return FULL;
    } else if (!reserve(&batch->data, size)) {
        return NO_MEMORY;
    }
    uint8_t *p = write_varint(batch->data.data + batch->data.size, (int64_t)length);
    *p++ = 0; /* attributes */
    p = write_varint(p, delta);
    p = write_varint(p, batch->count);
    p = write_text(p, record->key);
    p = write_text(p, record->value);
    p = write_varint(p, (int64_t)record->header_count);
    for (size_t i = 0; i < record->header_count; i++) {
        p = write_text(p, record->headers[i].key);
        p = write_text(p, record->headers[i].value);
    }
    batch->data.size += size;
    if (record->timestamp_ms > batch->max_timestamp)
        batch->max_timestamp = record->timestamp_ms;
    batch->count++;
    return APPENDED;
}

#define ATTRIBUTES_AT CRC_START
#define PRODUCER_AT 43
#define PRODUCER_END 57

/* Writes the header of a batch that nobody has stamped; with `sealed` it is complete. */
static void write_header(OpenBatch *batch, bool sealed) {
    uint8_t *p = batch->data.data;
    memset(p, 0, HEADER_SIZE);
    write_big_endian(p + 12, UINT32_MAX, 4); /* the leader's epoch: the broker sets it */
    p[MAGIC_AT] = 2;
    write_big_endian(p + 23, (uint32_t)batch->count - 1, 4);
    write_big_endian(p + 27, (uint64_t)batch->base_timestamp, 8);
    write_big_endian(p + 35, (uint64_t)batch->max_timestamp, 8);
    memset(p + PRODUCER_AT, 0xFF, PRODUCER_END - PRODUCER_AT);
    write_big_endian(p + 57, (uint32_t)batch->count, 4);
    if (sealed) {
        write_big_endian(p + 8, batch->data.size - LOG_OVERHEAD, 4);
        write_big_endian(p + 17, crc32c(p + CRC_START, batch->data.size - CRC_START), 4);
    }
}

/* ---- stamps ---------------------------------------------------------------------------------- */

/* A CRC is linear: what a stamp changes in it follows from the bytes that it changes and from how
 * many are behind them. Nothing of the records is read. */

static uint32_t after_zeros[32][32]; /* by n and bit: the CRC's bit after 2^n bytes of zero */

static inline uint32_t times(const uint32_t *matrix, uint32_t crc) {
    uint32_t product = 0;
    for (int bit = 0; crc; bit++, crc >>= 1)
        if (crc & 1)
            product ^= matrix[bit];
    return product;
}

static void fill_after_zeros(void) {
    for (int bit = 0; bit < 32; bit++) {
        uint32_t crc = 1u << bit;
        after_zeros[0][bit] = (crc >> 8) ^ crc_table[0][crc & 0xFF];
    }
    for (int n = 1; n < 32; n++)
        for (int bit = 0; bit < 32; bit++)
            after_zeros[n][bit] = times(after_zeros[n - 1], after_zeros[n - 1][bit]);
}

typedef struct {
    int64_t producer_id;
    int16_t epoch;
    int32_t base_sequence;
    bool transactional;
} Stamp;

/* Stamps the header of a batch of `size` bytes, at least HEADER_SIZE and less than 2^32. */
static void write_stamp(uint8_t *header, size_t size, const Stamp *stamp) {
    uint8_t before[PRODUCER_END - CRC_START];
    memcpy(before, header + CRC_START, sizeof before);
    header[ATTRIBUTES_AT + 1] = (uint8_t)((header[ATTRIBUTES_AT + 1] & ~TRANSACTIONAL_FLAG) |
                                          (stamp->transactional ? TRANSACTIONAL_FLAG : 0));
    write_big_endian(header + PRODUCER_AT, (uint64_t)stamp->producer_id, 8);
    write_big_endian(header + PRODUCER_AT + 8, (uint64_t)stamp->epoch, 2);
    write_big_endian(header + PRODUCER_AT + 10, (uint64_t)stamp->base_sequence, 4);
    uint32_t change = 0;
    for (size_t i = 0; i < sizeof before; i++)
        change = (change >> 8) ^ crc_table[0][(change ^ before[i] ^ header[CRC_START + i]) & 0xFF];
    size_t behind = size - PRODUCER_END;
    for (int n = 0; behind; n++, behind >>= 1)
        if (behind & 1)
            change = times(after_zeros[n], change);
    write_big_endian(header + 17, big_endian_32(header + 17) ^ change, 4);
}

static void prepare_encoder(void) {
    choose_crc32c();
    fill_after_zeros();
}

/* ---- Arrow's columns ------------------------------------------------------------------------- */

/* Numbers of Arrow's buffers; the address need not be aligned. */
static inline int32_t native_32(const uint8_t *numbers, size_t at) {
    int32_t value;
    memcpy(&value, numbers + at * sizeof value, sizeof value);
    return value;
}

static inline int64_t native_64(const uint8_t *numbers, size_t at) {
    int64_t value;
    memcpy(&value, numbers + at * sizeof value, sizeof value);
    return value;
}

typedef struct {
    bool given;              /* false: every row is null */
    const uint8_t *validity; /* a bitmap; NULL: no row is null */
    const uint8_t *numbers;  /* offsets into the data, or the numbers themselves */
    const uint8_t *data;
    size_t data_size;
    size_t offset;
    bool large; /* 64-bit offsets */
} Column;

static inline bool is_null(const Column *column, size_t row) {
    size_t at = column->offset + row;
    return !column->given ||
           (column->validity != NULL && !(column->validity[at >> 3] >> (at & 7) & 1));
}

/* Where a row begins and ends, in a column with this much data; false if that cannot be. */
static inline bool range_at(const Column *column, size_t row, size_t size, size_t *begin,
                            size_t *end) {
    size_t at = column->offset + row;
    int64_t first = column->large ? native_64(column->numbers, at) : native_32(column->numbers, at);
    int64_t last =
        column->large ? native_64(column->numbers, at + 1) : native_32(column->numbers, at + 1);
    if (first < 0 || last < first || (uint64_t)last > size)
        return false;
    *begin = (size_t)first;
    *end = (size_t)last;
    return true;
}

static inline bool text_at(const Column *column, size_t row, Text *text) {
    static const uint8_t empty[1];
    *text = (Text){NULL, 0};
    if (is_null(column, row))
        return true;
    size_t begin, end;
    if (!range_at(column, row, column->data_size, &begin, &end))
        return false;
    text->bytes = begin == end ? empty : column->data + begin;
    text->size = end - begin;
    return true;
}

typedef struct {
    size_t rows;
    Column keys, values;
    Column headers; /* lists: offsets into the next two, which have this many items */
    Column header_keys, header_values;
    size_t header_count;
    Column timestamps; /* int64 */
    int64_t ticks_per_ms;
    Column partitions; /* int32 */
} Rows;

typedef enum { GOOD, REFUSED, MALFORMED, EXHAUSTED } Read;

/* Reads the headers of a row into the scratch memory. */
static Read read_row_headers(const Rows *rows, size_t row, const Limits *limits, Buffer *scratch,
                             Record *record) {
    size_t begin, end;
    if (is_null(&rows->headers, row))
        return GOOD;
    if (!range_at(&rows->headers, row, rows->header_count, &begin, &end))
        return MALFORMED;
    /* The shortest header takes two bytes. */
    if ((end - begin) > limits->max_request_bytes / 2)
        return REFUSED;
    scratch->size = 0;
    if (!reserve(scratch, (end - begin) * sizeof(Header)))
        return EXHAUSTED;
    Header *headers = (Header *)scratch->data;
    for (size_t i = begin; i < end; i++) {
        Header *header = &headers[i - begin];
        if (!text_at(&rows->header_keys, i, &header->key) ||
            !text_at(&rows->header_values, i, &header->value))
            return MALFORMED;
        if (header->key.bytes == NULL)
            return REFUSED;
    }
    record->headers = headers;
    record->header_count = end - begin;
    return GOOD;
}

static inline int64_t floor_divided(int64_t ticks, int64_t by) {
    return ticks / by - (ticks % by < 0);
}

/* Reads a row. Its partition is -1 if it has none. */
static inline Read read_row(const Rows *rows, size_t row, int64_t now_ms, int32_t partitions,
                            const Limits *limits, Buffer *scratch, Record *record, size_t *body,
                            int32_t *partition) {
    *partition = -1;
    if (!is_null(&rows->partitions, row)) {
        *partition = native_32(rows->partitions.numbers, rows->partitions.offset + row);
        if (*partition < 0 || *partition >= partitions)
            return REFUSED;
    }
    record->headers = NULL;
    record->header_count = 0;
    if (!text_at(&rows->keys, row, &record->key) || !text_at(&rows->values, row, &record->value))
        return MALFORMED;
    if (rows->headers.given) {
        Read read = read_row_headers(rows, row, limits, scratch, record);
        if (read != GOOD)
            return read;
    }
    *body = body_size(record, limits);
    if (most_bytes(*body) > limits->max_request_bytes)
        return REFUSED;
    record->timestamp_ms = now_ms;
    if (!is_null(&rows->timestamps, row)) {
        int64_t ticks = native_64(rows->timestamps.numbers, rows->timestamps.offset + row);
        record->timestamp_ms =
            rows->ticks_per_ms == 1 ? ticks : floor_divided(ticks, rows->ticks_per_ms);
    }
    return GOOD;
}

/* ---- the encoder ----------------------------------------------------------------------------- */

typedef struct {
    OpenBatch batch;
    int32_t partition;
} ClosedBatch;

typedef struct {
    Limits limits;
    bool sealed; /* batches are complete when they are closed, since nobody compresses them */
    Buffer open;   /* OpenBatch, by partition */
    Buffer closed; /* ClosedBatch */
    Buffer headers; /* Header: those of the row in hand */
} Encoding;

static inline size_t open_count(const Encoding *encoding) {
    return encoding->open.size / sizeof(OpenBatch);
}

static inline size_t closed_count(const Encoding *encoding) {
    return encoding->closed.size / sizeof(ClosedBatch);
}

static inline OpenBatch *open_batch(const Encoding *encoding, size_t partition) {
    return (OpenBatch *)encoding->open.data + partition;
}

static inline ClosedBatch *closed_batch(const Encoding *encoding, size_t n) {
    return (ClosedBatch *)encoding->closed.data + n;
}

static void free_encoding(Encoding *encoding) {
    for (size_t n = 0; n < open_count(encoding); n++)
        free(open_batch(encoding, n)->data.data);
    for (size_t n = 0; n < closed_count(encoding); n++)
        free(closed_batch(encoding, n)->batch.data.data);
    free(encoding->open.data);
    free(encoding->closed.data);
    free(encoding->headers.data);
    encoding->open = encoding->closed = encoding->headers = (Buffer){0};
}

/* Makes room for the open batches of partitions up to this one. */
static bool know_partition(Encoding *encoding, int32_t partition) {
    size_t size = ((size_t)partition + 1) * sizeof(OpenBatch);
    if (size <= encoding->open.size)
        return true;
    if (!reserve(&encoding->open, size - encoding->open.size))
        return false;
    memset(encoding->open.data + encoding->open.size, 0, size - encoding->open.size);
    encoding->open.size = size;
    return true;
}

/* Gives back the memory that a closed batch does not need. */
static void shrink(Buffer *buffer) {
    uint8_t *data = realloc(buffer->data, buffer->size);
    if (data != NULL) {
        buffer->data = data;
        buffer->capacity = buffer->size;
    }
}

/* Closes a partition's batch. The next one will be as large, so it gets the same room. */
static bool close_batch(Encoding *encoding, int32_t partition) {
    OpenBatch *open = open_batch(encoding, (size_t)partition);
    if (!reserve(&encoding->closed, sizeof(ClosedBatch)))
        return false;
    OpenBatch following = {0};
    if (!reserve(&following.data, open->data.size))
        return false;
    write_header(open, encoding->sealed);
    shrink(&open->data);
    *closed_batch(encoding, closed_count(encoding)) = (ClosedBatch){*open, partition};
    encoding->closed.size += sizeof(ClosedBatch);
    *open = following;
    return true;
}

static bool close_all(Encoding *encoding) {
    for (size_t n = 0; n < open_count(encoding); n++)
        if (open_batch(encoding, n)->count && !close_batch(encoding, (int32_t)n))
            return false;
    return true;
}

/* The partitions that take turns for records without a key, and which of them it is. */
typedef struct {
    const uint8_t *order; /* int32 */
    size_t count, at;
} Sticky;

static inline int32_t sticky_partition(const Sticky *sticky) {
    return native_32(sticky->order, sticky->at);
}

/* Appends a record to the batch of its partition, which is closed first if it is full. */
static bool append_to(Encoding *encoding, int32_t partition, bool may_move, const Record *record,
                      size_t body, Sticky *sticky) {
    for (int attempt = 0; attempt < 3; attempt++) {
        if (!know_partition(encoding, partition))
            return false;
        OpenBatch *batch = open_batch(encoding, (size_t)partition);
        Appended appended = append_record(batch, record, body, &encoding->limits);
        if (appended != FULL)
            return appended == APPENDED;
        if (!close_batch(encoding, partition))
            return false;
        /* The sticky partition moves on at most once for a record. */
        if (attempt == 0 && partition == sticky_partition(sticky)) {
            sticky->at = (sticky->at + 1) % sticky->count;
            if (may_move)
                partition = sticky_partition(sticky);
        }
    }
    return false; /* not reached: an empty batch takes any record */
}

/* Returns the first row that is refused, or -1; `read` says what else there is. */
static int64_t first_refused(Encoding *encoding, const Rows *rows, int32_t partitions,
                             Read *read) {
    Record record;
    size_t body;
    int32_t partition;
    *read = GOOD;
    for (size_t row = 0; row < rows->rows; row++) {
        *read = read_row(rows, row, 0, partitions, &encoding->limits, &encoding->headers, &record,
                         &body, &partition);
        if (*read != GOOD)
            return (int64_t)row;
    }
    return -1;
}

static Read append_rows(Encoding *encoding, const Rows *rows, int64_t now_ms, int32_t partitions,
                        Sticky *sticky) {
    Record record;
    size_t body;
    int32_t partition;
    for (size_t row = 0; row < rows->rows; row++) {
        Read read = read_row(rows, row, now_ms, partitions, &encoding->limits, &encoding->headers,
                             &record, &body, &partition);
        if (read != GOOD)
            return read;
        bool no_choice = partition < 0 && record.key.bytes == NULL;
        if (no_choice)
            partition = sticky_partition(sticky);
        else if (partition < 0)
            partition = partition_of_key(record.key.bytes, record.key.size, partitions);
        if (!append_to(encoding, partition, no_choice, &record, body, sticky))
            return EXHAUSTED;
    }
    return GOOD;
}

#ifndef ENCODER_CORE_ONLY

/* ---- Python ---------------------------------------------------------------------------------- */

/* Memory of a batch that was handed over. */
typedef struct {
    PyObject_HEAD
    Buffer data;
} MemoryObject;

static void dealloc_memory(MemoryObject *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    free(self->data.data);
    freefunc release_object = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release_object(self);
    Py_DECREF(type);
}

static int lend_memory(MemoryObject *self, Py_buffer *view, int flags) {
    return PyBuffer_FillInfo(view, (PyObject *)self, self->data.data, (Py_ssize_t)self->data.size,
                             0, flags);
}

static PyType_Slot memory_slots[] = {
    {Py_tp_dealloc, dealloc_memory},
    {Py_bf_getbuffer, lend_memory},
    {0, NULL},
};

static PyType_Spec memory_spec = {
    .name = "pyspark_kafka_rebalance.produce.encoder._encoder.Memory",
    .basicsize = sizeof(MemoryObject),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = memory_slots,
};

static PyTypeObject *memory_type;

/* Returns a memoryview, which may be written to. The buffer is empty afterwards, unless this fails. */
static PyObject *hand_over(Buffer *buffer) {
    allocfunc allocate = (allocfunc)PyType_GetSlot(memory_type, Py_tp_alloc);
    MemoryObject *owner = (MemoryObject *)allocate(memory_type, 0); /* zeroed */
    if (owner == NULL)
        return NULL;
    owner->data = *buffer;
    PyObject *view = PyMemoryView_FromObject((PyObject *)owner);
    if (view == NULL)
        memset(&owner->data, 0, sizeof owner->data);
    else
        memset(buffer, 0, sizeof *buffer);
    Py_DECREF(owner);
    return view;
}

/* Fewer rows are done sooner than the GIL could be taken again. */
#define RELEASE_GIL_FROM_ROWS 256

/* The buffers that a call holds: at most three for each of seven columns. */
typedef struct {
    Py_buffer held[21];
    int count;
} Held;

static void release(Held *held) {
    while (held->count)
        PyBuffer_Release(&held->held[--held->count]);
}

/* Takes the memory of a buffer; None is none. */
static bool hold(Held *held, PyObject *object, const uint8_t **data, size_t *size) {
    *data = NULL;
    *size = 0;
    if (object == Py_None)
        return true;
    Py_buffer *buffer = &held->held[held->count];
    if (PyObject_GetBuffer(object, buffer, PyBUF_SIMPLE) < 0)
        return false;
    held->count++;
    *data = buffer->buf;
    *size = (size_t)buffer->len;
    return true;
}

/* Takes (validity, numbers, data, offset, width of a number), or None. There are `rows` rows, and
 * with `ends` one number more. */
static bool take_column(Held *held, PyObject *object, size_t rows, bool ends, Column *column) {
    *column = (Column){0};
    if (object == Py_None)
        return true;
    PyObject *validity, *numbers, *data;
    Py_ssize_t offset;
    int width;
    if (!PyArg_ParseTuple(object, "OOOni:column", &validity, &numbers, &data, &offset, &width))
        return false;
    size_t validity_size, numbers_size;
    if (!hold(held, validity, &column->validity, &validity_size) ||
        !hold(held, numbers, &column->numbers, &numbers_size) ||
        !hold(held, data, &column->data, &column->data_size))
        return false;
    column->given = true;
    column->large = width == 8;
    column->offset = (size_t)offset;
    /* Python's sizes are below 2^63: nothing overflows. */
    if (offset < 0 || (width != 4 && width != 8) ||
        (column->validity != NULL && validity_size < (column->offset + rows + 7) / 8) ||
        numbers_size / (size_t)width < column->offset + rows + (ends && rows)) {
        PyErr_SetString(PyExc_ValueError, "an Arrow array is larger than its buffers");
        return false;
    }
    return true;
}

/* Takes (rows, keys, values, headers, header keys, header values, headers of all rows, timestamps,
 * ticks in a millisecond, partitions). */
static bool take_rows(Held *held, PyObject *object, Rows *rows) {
    PyObject *keys, *values, *headers, *header_keys, *header_values, *timestamps, *partitions;
    Py_ssize_t count, header_count;
    long long ticks_per_ms;
    if (!PyArg_ParseTuple(object, "nOOOOOnOLO:rows", &count, &keys, &values, &headers,
                          &header_keys, &header_values, &header_count, &timestamps, &ticks_per_ms,
                          &partitions))
        return false;
    if (count < 0 || header_count < 0 || ticks_per_ms < 1) {
        PyErr_SetString(PyExc_ValueError, "out of range");
        return false;
    }
    rows->rows = (size_t)count;
    rows->header_count = (size_t)header_count;
    rows->ticks_per_ms = ticks_per_ms;
    if (!take_column(held, keys, rows->rows, true, &rows->keys) ||
        !take_column(held, values, rows->rows, true, &rows->values) ||
        !take_column(held, headers, rows->rows, true, &rows->headers) ||
        !take_column(held, header_keys, rows->header_count, true, &rows->header_keys) ||
        !take_column(held, header_values, rows->header_count, true, &rows->header_values) ||
        !take_column(held, timestamps, rows->rows, false, &rows->timestamps) ||
        !take_column(held, partitions, rows->rows, false, &rows->partitions))
        return false;
    if ((rows->timestamps.given && !rows->timestamps.large) ||
        (rows->partitions.given && rows->partitions.large)) {
        PyErr_SetString(PyExc_ValueError, "timestamps have 64 bits, partitions 32");
        return false;
    }
    return true;
}

static bool set_error(Read read) {
    if (read == EXHAUSTED)
        PyErr_NoMemory();
    else if (read == MALFORMED)
        PyErr_SetString(PyExc_ValueError, "an Arrow array has offsets beyond its buffers");
    else if (read == REFUSED)
        PyErr_SetString(PyExc_ValueError, "a row is refused");
    return read != GOOD;
}

/* Reads the limits that both types take first. */
static bool take_limits(Py_ssize_t batch_bytes, int batch_records, Py_ssize_t max_request_bytes,
                        Limits *limits) {
    const Py_ssize_t most = 1 << 30;
    if (batch_bytes < 1 || batch_bytes > most || batch_records < 1 || max_request_bytes < 1 ||
        max_request_bytes > most) {
        PyErr_SetString(PyExc_ValueError, "out of range");
        return false;
    }
    *limits = (Limits){(size_t)batch_bytes, batch_records, (size_t)max_request_bytes};
    return true;
}

typedef struct {
    PyObject_HEAD
    Encoding encoding;
    bool busy;   /* in use without the GIL */
    bool broken; /* memory was exhausted in the middle of something */
} EncoderObject;

static PyObject *new_encoder(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"batch_bytes", "batch_records", "max_request_bytes", "sealed", NULL};
    Py_ssize_t batch_bytes, max_request_bytes;
    int batch_records, sealed;
    Limits limits;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "ninp:Encoder", names, &batch_bytes,
                                     &batch_records, &max_request_bytes, &sealed) ||
        !take_limits(batch_bytes, batch_records, max_request_bytes, &limits))
        return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    EncoderObject *self = (EncoderObject *)allocate(type, 0); /* zeroed */
    if (self != NULL) {
        self->encoding.limits = limits;
        self->encoding.sealed = sealed;
    }
    return (PyObject *)self;
}

static void dealloc_encoder(EncoderObject *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    free_encoding(&self->encoding);
    freefunc release_object = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release_object(self);
    Py_DECREF(type);
}

static bool acquire_encoder(EncoderObject *self) {
    if (self->busy)
        PyErr_SetString(PyExc_RuntimeError, "another thread uses this encoder");
    else if (self->broken)
        PyErr_SetString(PyExc_RuntimeError, "this encoder failed in the middle of a call");
    return !self->busy && !self->broken;
}

PyDoc_STRVAR(first_refused_doc,
             "first_refused($self, rows, partitions, /)\n--\n\n"
             "The first row that cannot be encoded, -1 if all can.");

static PyObject *encoder_first_refused(EncoderObject *self, PyObject *args) {
    PyObject *object;
    int partitions;
    if (!PyArg_ParseTuple(args, "Oi:first_refused", &object, &partitions) ||
        !acquire_encoder(self))
        return NULL;
    Held held = {.count = 0};
    Rows rows;
    int64_t refused = -1;
    Read read = GOOD;
    if (take_rows(&held, object, &rows)) {
        PyThreadState *state = NULL;
        self->busy = true;
        if (rows.rows >= RELEASE_GIL_FROM_ROWS)
            state = PyEval_SaveThread();
        refused = first_refused(&self->encoding, &rows, partitions, &read);
        if (state != NULL)
            PyEval_RestoreThread(state);
        self->busy = false;
        if (read != REFUSED)
            set_error(read);
    }
    release(&held);
    return PyErr_Occurred() ? NULL : PyLong_FromLongLong(refused);
}

PyDoc_STRVAR(append_rows_doc,
             "append($self, rows, timestamp_ms, partitions, order, at, /)\n--\n\n"
             "Append rows, of which none is refused; return where in `order` the sticky partition "
             "is then.");

static PyObject *encoder_append(EncoderObject *self, PyObject *args) {
    PyObject *object, *order;
    long long timestamp_ms;
    int partitions;
    Py_ssize_t at;
    if (!PyArg_ParseTuple(args, "OLiOn:append", &object, &timestamp_ms, &partitions, &order, &at) ||
        !acquire_encoder(self))
        return NULL;
    Held held = {.count = 0};
    Py_buffer turns;
    Rows rows;
    Sticky sticky = {0};
    if (PyObject_GetBuffer(order, &turns, PyBUF_SIMPLE) < 0)
        return NULL;
    sticky = (Sticky){turns.buf, (size_t)turns.len / sizeof(int32_t), (size_t)at};
    bool in_range = partitions > 0 && at >= 0 && sticky.at < sticky.count;
    for (size_t n = 0; n < sticky.count; n++)
        in_range = in_range && native_32(sticky.order, n) >= 0 &&
                   native_32(sticky.order, n) < partitions;
    if (!in_range) {
        PyErr_SetString(PyExc_ValueError, "out of range");
    } else if (take_rows(&held, object, &rows)) {
        PyThreadState *state = NULL;
        self->busy = true;
        if (rows.rows >= RELEASE_GIL_FROM_ROWS)
            state = PyEval_SaveThread();
        Read read = append_rows(&self->encoding, &rows, timestamp_ms, partitions, &sticky);
        if (state != NULL)
            PyEval_RestoreThread(state);
        self->busy = false;
        self->broken = set_error(read);
    }
    release(&held);
    PyBuffer_Release(&turns);
    return PyErr_Occurred() ? NULL : PyLong_FromSize_t(sticky.at);
}

PyDoc_STRVAR(close_all_doc, "close_all($self, /)\n--\n\nClose all batches that have records.");

static PyObject *encoder_close_all(EncoderObject *self, PyObject *Py_UNUSED(none)) {
    if (!acquire_encoder(self))
        return NULL;
    if (!close_all(&self->encoding)) {
        self->broken = true;
        return PyErr_NoMemory();
    }
    Py_RETURN_NONE;
}

/* Returns (partition, memoryview, records). */
static PyObject *describe(ClosedBatch *closed) {
    PyObject *data = hand_over(&closed->batch.data);
    return data == NULL ? NULL
                        : Py_BuildValue("(iNi)", (int)closed->partition, data,
                                        (int)closed->batch.count);
}

PyDoc_STRVAR(take_closed_doc,
             "take($self, /)\n--\n\n"
             "Hand the closed batches over: (partition, batch, records), as they were closed.");

static PyObject *encoder_take(EncoderObject *self, PyObject *Py_UNUSED(none)) {
    if (!acquire_encoder(self))
        return NULL;
    Encoding *encoding = &self->encoding;
    size_t count = closed_count(encoding);
    PyObject *taken = PyList_New((Py_ssize_t)count);
    if (taken == NULL)
        return NULL;
    for (size_t n = 0; n < count; n++) {
        PyObject *described = describe(closed_batch(encoding, n));
        if (described == NULL) { /* some are in the list, which is gone */
            self->broken = true;
            Py_DECREF(taken);
            return NULL;
        }
        PyList_SetItem(taken, (Py_ssize_t)n, described);
    }
    encoding->closed.size = 0;
    return taken;
}

static PyObject *encoder_open_bytes(EncoderObject *self, void *Py_UNUSED(closure)) {
    if (!acquire_encoder(self))
        return NULL;
    size_t bytes = 0;
    for (size_t n = 0; n < open_count(&self->encoding); n++)
        if (open_batch(&self->encoding, n)->count)
            bytes += open_batch(&self->encoding, n)->data.size;
    return PyLong_FromSize_t(bytes);
}

static PyMethodDef encoder_methods[] = {
    {"first_refused", (PyCFunction)encoder_first_refused, METH_VARARGS, first_refused_doc},
    {"append", (PyCFunction)encoder_append, METH_VARARGS, append_rows_doc},
    {"close_all", (PyCFunction)encoder_close_all, METH_NOARGS, close_all_doc},
    {"take", (PyCFunction)encoder_take, METH_NOARGS, take_closed_doc},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef encoder_properties[] = {
    {"open_bytes", (getter)encoder_open_bytes, NULL, "The size of the batches that are not closed.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(encoder_doc,
             "Encoder(batch_bytes, batch_records, max_request_bytes, sealed)\n--\n\n"
             "Rows to the batches of their partitions.");

static PyType_Slot encoder_slots[] = {
    {Py_tp_doc, (void *)encoder_doc},
    {Py_tp_new, new_encoder},
    {Py_tp_dealloc, dealloc_encoder},
    {Py_tp_methods, encoder_methods},
    {Py_tp_getset, encoder_properties},
    {0, NULL},
};

static PyType_Spec encoder_spec = {
    .name = "pyspark_kafka_rebalance.produce.encoder._encoder.Encoder",
    .basicsize = sizeof(EncoderObject),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = encoder_slots,
};

/* ---- records one by one ---------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    Limits limits;
    OpenBatch batch;
    Buffer headers; /* Header: those of the record in hand */
    PyObject *refuse;
} RecordsObject;

static PyObject *new_records(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"batch_bytes", "batch_records", "max_request_bytes", "refuse", NULL};
    Py_ssize_t batch_bytes, max_request_bytes;
    int batch_records;
    PyObject *refuse;
    Limits limits;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "ninO:Records", names, &batch_bytes,
                                     &batch_records, &max_request_bytes, &refuse) ||
        !take_limits(batch_bytes, batch_records, max_request_bytes, &limits))
        return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    RecordsObject *self = (RecordsObject *)allocate(type, 0); /* zeroed */
    if (self != NULL) {
        self->limits = limits;
        Py_INCREF(refuse);
        self->refuse = refuse;
    }
    return (PyObject *)self;
}

static void dealloc_records(RecordsObject *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    free(self->batch.data.data);
    free(self->headers.data);
    Py_XDECREF(self->refuse);
    freefunc release_object = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release_object(self);
    Py_DECREF(type);
}

/* Takes bytes or anything with the buffer protocol, or None. */
static bool take_text(Held *held, PyObject *object, Text *text) {
    if (PyBytes_Check(object)) {
        text->bytes = (const uint8_t *)PyBytes_AsString(object);
        text->size = (size_t)PyBytes_Size(object);
        return true;
    }
    if (!hold(held, object, &text->bytes, &text->size))
        return false;
    if (object != Py_None && text->bytes == NULL)
        text->bytes = (const uint8_t *)""; /* an empty buffer need not have an address */
    return true;
}

static bool take_header_key(PyObject *object, Text *text) {
    if (PyUnicode_Check(object)) {
        Py_ssize_t size = 0;
        text->bytes = (const uint8_t *)PyUnicode_AsUTF8AndSize(object, &size);
        text->size = (size_t)size;
        return text->bytes != NULL;
    }
    if (!PyBytes_Check(object)) {
        PyErr_SetString(PyExc_TypeError, "the key of a header is a str or bytes");
        return false;
    }
    text->bytes = (const uint8_t *)PyBytes_AsString(object);
    text->size = (size_t)PyBytes_Size(object);
    return true;
}

static bool take_header(PyObject *object, Header *header) {
    if (!PyTuple_Check(object) || PyTuple_Size(object) != 2) {
        PyErr_SetString(PyExc_TypeError, "a header is a tuple of a key and a value");
        return false;
    }
    PyObject *value = PyTuple_GetItem(object, 1);
    if (!take_header_key(PyTuple_GetItem(object, 0), &header->key))
        return false;
    header->value = (Text){NULL, 0};
    if (value == Py_None)
        return true;
    if (!PyBytes_Check(value)) {
        PyErr_SetString(PyExc_TypeError, "the value of a header is bytes or None");
        return false;
    }
    header->value.bytes = (const uint8_t *)PyBytes_AsString(value);
    header->value.size = (size_t)PyBytes_Size(value);
    return true;
}

/* The headers' memory is that of the objects, so no Python may run before they are written. */
static bool take_headers(RecordsObject *self, PyObject *object, Record *record) {
    if (object == Py_None)
        return true;
    bool is_list = PyList_Check(object);
    if (!is_list && !PyTuple_Check(object)) {
        PyErr_SetString(PyExc_TypeError, "headers are a list or a tuple, or None");
        return false;
    }
    Py_ssize_t count = is_list ? PyList_Size(object) : PyTuple_Size(object);
    self->headers.size = 0;
    if (!reserve(&self->headers, (size_t)count * sizeof(Header))) {
        PyErr_NoMemory();
        return false;
    }
    Header *headers = (Header *)self->headers.data;
    for (Py_ssize_t i = 0; i < count; i++)
        if (!take_header(is_list ? PyList_GetItem(object, i) : PyTuple_GetItem(object, i),
                         &headers[i]))
            return false;
    record->headers = headers;
    record->header_count = (size_t)count;
    return true;
}

static PyObject *append_one(RecordsObject *self, const Record *record) {
    size_t body = body_size(record, &self->limits);
    if (most_bytes(body) > self->limits.max_request_bytes) {
        /* All of it counts in the error. */
        Limits unlimited = {.max_request_bytes = SIZE_MAX};
        body = body_size(record, &unlimited);
        return PyObject_CallFunction(self->refuse, "n", (Py_ssize_t)most_bytes(body));
    }
    switch (append_record(&self->batch, record, body, &self->limits)) {
    case APPENDED:
        return PyLong_FromSize_t(self->batch.data.size);
    case FULL:
        return PyLong_FromLong(0);
    default:
        return PyErr_NoMemory();
    }
}

PyDoc_STRVAR(append_record_doc,
             "append($self, key, value, headers, timestamp_ms, /)\n--\n\n"
             "Append a record; return the size of the batch so far, 0 if it does not fit.");

static PyObject *records_append(RecordsObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 4) {
        PyErr_Format(PyExc_TypeError, "append() takes 4 arguments (%zd given)", count);
        return NULL;
    }
    Held held = {.count = 0};
    Record record = {.headers = NULL};
    PyObject *appended = NULL;
    record.timestamp_ms = PyLong_AsLongLong(args[3]);
    if (!(record.timestamp_ms == -1 && PyErr_Occurred()) &&
        take_text(&held, args[0], &record.key) && take_text(&held, args[1], &record.value) &&
        take_headers(self, args[2], &record))
        appended = append_one(self, &record);
    release(&held);
    return appended;
}

PyDoc_STRVAR(take_records_doc,
             "take($self, sealed, /)\n--\n\n"
             "Hand the batch over and be empty; without `sealed` its header lacks length and CRC.");

static PyObject *records_take(RecordsObject *self, PyObject *args) {
    int sealed;
    if (!PyArg_ParseTuple(args, "p:take", &sealed))
        return NULL;
    OpenBatch *batch = &self->batch;
    if (batch->count == 0) {
        PyErr_SetString(PyExc_ValueError, "a record batch without records");
        return NULL;
    }
    Buffer following = {0}; /* the next batch will be as large */
    if (!reserve(&following, batch->data.size))
        return PyErr_NoMemory();
    write_header(batch, sealed);
    shrink(&batch->data);
    PyObject *data = hand_over(&batch->data);
    if (data == NULL) {
        free(following.data);
        return NULL;
    }
    batch->data = following;
    batch->count = 0;
    return data;
}

static Py_ssize_t records_length(RecordsObject *self) { return self->batch.count; }

static PyObject *records_size(RecordsObject *self, void *Py_UNUSED(closure)) {
    return PyLong_FromSize_t(self->batch.count ? self->batch.data.size : HEADER_SIZE);
}

static PyMethodDef records_methods[] = {
    {"append", (PyCFunction)(void (*)(void))records_append, METH_FASTCALL, append_record_doc},
    {"take", (PyCFunction)records_take, METH_VARARGS, take_records_doc},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef records_properties[] = {
    {"size", (getter)records_size, NULL, "The size of the batch so far.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(records_doc,
             "Records(batch_bytes, batch_records, max_request_bytes, refuse)\n--\n\n"
             "The records of one batch, one by one.");

static PyType_Slot records_slots[] = {
    {Py_tp_doc, (void *)records_doc},
    {Py_tp_new, new_records},
    {Py_tp_dealloc, dealloc_records},
    {Py_tp_methods, records_methods},
    {Py_tp_getset, records_properties},
    {Py_sq_length, records_length},
    {0, NULL},
};

static PyType_Spec records_spec = {
    .name = "pyspark_kafka_rebalance.produce.encoder._encoder.Records",
    .basicsize = sizeof(RecordsObject),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = records_slots,
};

/* ---- records of a topic, at once ------------------------------------------------------------- */

/* Most records need no more than a copy into an open batch. Python would take a lock for that and
 * read a dozen attributes, which takes ten times as long. Here the GIL is held from the first check
 * to the last number, and nothing in between runs Python: who finds the producer's lock free may do
 * what its holder may. Whatever else a record needs, or is wrong with it, is for the slow way. */

typedef struct {
    PyObject_HEAD
    PyObject *locked; /* says whether the lock is held; NULL or None: nothing is done at once */
    long long used, most, accepts;
} RoomObject;

static PyTypeObject *room_type, *records_type;

static PyObject *new_room(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"most", NULL};
    long long most;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "L:Room", names, &most))
        return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    RoomObject *self = (RoomObject *)allocate(type, 0); /* zeroed */
    if (self != NULL)
        self->most = most;
    return (PyObject *)self;
}

static void dealloc_room(RoomObject *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    Py_XDECREF(self->locked);
    freefunc release_object = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release_object(self);
    Py_DECREF(type);
}

static bool is_free(const RoomObject *room) {
    if (room->locked == NULL || room->locked == Py_None)
        return false;
    PyObject *locked = PyObject_CallNoArgs(room->locked);
    Py_XDECREF(locked); /* False is not freed by that */
    return locked == Py_False;
}

static PyMemberDef room_members[] = {
    {"locked", T_OBJECT, offsetof(RoomObject, locked), 0,
     "Says whether the lock is held that guards all of this; None: unknown."},
    {"used", T_LONGLONG, offsetof(RoomObject, used), 0, "Bytes of records."},
    {"most", T_LONGLONG, offsetof(RoomObject, most), 0, "Below so many one more may come."},
    {"accepts", T_LONGLONG, offsetof(RoomObject, accepts), 0, "The transaction that takes records."},
    {NULL, 0, 0, 0, NULL},
};

PyDoc_STRVAR(room_doc, "Room(most)\n--\n\nWhat all topics of a producer share.");

static PyType_Slot room_slots[] = {
    {Py_tp_doc, (void *)room_doc},
    {Py_tp_new, new_room},
    {Py_tp_dealloc, dealloc_room},
    {Py_tp_members, room_members},
    {0, NULL},
};

static PyType_Spec room_spec = {
    .name = "pyspark_kafka_rebalance.produce.encoder._encoder.Room",
    .basicsize = sizeof(RoomObject),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = room_slots,
};

typedef struct {
    PyObject_HEAD
    RoomObject *room;
    Buffer open; /* RecordsObject *, by partition; NULL while there is none */
    long long size;
    int partitions, sticky;
    char ready;
} AppenderObject;

static inline size_t known_count(const AppenderObject *self) {
    return self->open.size / sizeof(RecordsObject *);
}

static inline RecordsObject **known(const AppenderObject *self, size_t partition) {
    return (RecordsObject **)self->open.data + partition;
}

static PyObject *new_appender(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"room", NULL};
    PyObject *room;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!:Appender", names, room_type, &room))
        return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    AppenderObject *self = (AppenderObject *)allocate(type, 0); /* zeroed */
    if (self != NULL) {
        Py_INCREF(room);
        self->room = (RoomObject *)room;
    }
    return (PyObject *)self;
}

static void dealloc_appender(AppenderObject *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    for (size_t n = 0; n < known_count(self); n++)
        Py_XDECREF((PyObject *)*known(self, n));
    free(self->open.data);
    Py_XDECREF((PyObject *)self->room);
    freefunc release_object = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release_object(self);
    Py_DECREF(type);
}

PyDoc_STRVAR(appender_know_doc,
             "know($self, partition, records, /)\n--\n\n"
             "Append a partition's records to these from now on; None: to none that are known.");

static PyObject *appender_know(AppenderObject *self, PyObject *args) {
    PyObject *records;
    int partition;
    if (!PyArg_ParseTuple(args, "iO:know", &partition, &records))
        return NULL;
    if (records != Py_None && !PyObject_TypeCheck(records, records_type)) {
        PyErr_SetString(PyExc_TypeError, "know() takes Records or None");
        return NULL;
    }
    if (partition < 0) {
        PyErr_SetString(PyExc_ValueError, "out of range");
        return NULL;
    }
    size_t size = ((size_t)partition + 1) * sizeof(RecordsObject *);
    if (size > self->open.size) {
        if (!reserve(&self->open, size - self->open.size))
            return PyErr_NoMemory();
        memset(self->open.data + self->open.size, 0, size - self->open.size);
        self->open.size = size;
    }
    RecordsObject *before = *known(self, (size_t)partition);
    RecordsObject *now = records == Py_None ? NULL : (RecordsObject *)records;
    Py_XINCREF((PyObject *)now);
    *known(self, (size_t)partition) = now;
    Py_XDECREF((PyObject *)before);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(appender_open_doc,
             "open($self, /)\n--\n\nThe partitions that have records, in order.");

static PyObject *appender_open(AppenderObject *self, PyObject *Py_UNUSED(none)) {
    PyObject *open = PyList_New(0);
    for (size_t n = 0; open != NULL && n < known_count(self); n++) {
        const RecordsObject *records = *known(self, n);
        if (records == NULL || !records->batch.count)
            continue;
        PyObject *partition = PyLong_FromSize_t(n);
        if (partition == NULL || PyList_Append(open, partition) < 0)
            Py_CLEAR(open);
        Py_XDECREF(partition);
    }
    return open;
}

/* Takes bytes or None. A buffer's owner might run Python. */
static inline bool take_bytes(PyObject *object, Text *text) {
    *text = (Text){NULL, 0};
    if (object == Py_None)
        return true;
    if (!PyBytes_Check(object))
        return false;
    text->bytes = (const uint8_t *)PyBytes_AsString(object);
    text->size = (size_t)PyBytes_Size(object);
    return true;
}

/* Takes an int, but no bool. Another number might run Python. */
static inline bool take_int(PyObject *object, int64_t *number) {
    if (!PyLong_CheckExact(object))
        return false;
    *number = PyLong_AsLongLong(object);
    return !(*number == -1 && PyErr_Occurred());
}

/* The partition of a record; -1 if that is for the slow way. */
static int64_t partition_of(const AppenderObject *self, const Text *key, PyObject *given) {
    int64_t partition;
    if (given != Py_None)
        return take_int(given, &partition) ? partition : -1;
    if (key->bytes == NULL)
        return self->sticky;
    return self->partitions > 0 ? partition_of_key(key->bytes, key->size, self->partitions) : -1;
}

static int64_t now_in_ms(void) {
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Appends (transaction, key, value, headers, partition, timestamp) if it is that simple; an error
 * that is set counts as no. */
static bool append_at_once(AppenderObject *self, PyObject *const *args) {
    RoomObject *room = self->room;
    Record record = {.headers = NULL};
    int64_t transaction;
    if (!self->ready || room->used >= room->most || !take_int(args[0], &transaction) ||
        transaction != room->accepts || !take_bytes(args[1], &record.key) ||
        !take_bytes(args[2], &record.value))
        return false;
    int64_t partition = partition_of(self, &record.key, args[4]);
    if (partition < 0 || partition >= self->partitions ||
        (size_t)partition >= known_count(self) || *known(self, (size_t)partition) == NULL)
        return false;
    RecordsObject *records = *known(self, (size_t)partition);
    if (args[5] == Py_None)
        record.timestamp_ms = now_in_ms();
    else if (!take_int(args[5], &record.timestamp_ms))
        return false;
    if (!take_headers(records, args[3], &record))
        return false;
    size_t body = body_size(&record, &records->limits);
    if (most_bytes(body) > records->limits.max_request_bytes || !is_free(room))
        return false;
    size_t before = records->batch.count ? records->batch.data.size : 0;
    if (append_record(&records->batch, &record, body, &records->limits) != APPENDED)
        return false;
    long long grown = (long long)(records->batch.data.size - before);
    self->size += grown;
    room->used += grown;
    return true;
}

PyDoc_STRVAR(appender_append_doc,
             "append($self, transaction, key, value, headers, partition, timestamp_ms, /)\n--\n\n"
             "Append a record and return True; or do nothing and return False, if there is more to "
             "do, to wait for, or to complain about.");

static PyObject *appender_append(AppenderObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 6) {
        PyErr_Format(PyExc_TypeError, "append() takes 6 arguments (%zd given)", count);
        return NULL;
    }
    bool appended = append_at_once(self, args);
    if (PyErr_Occurred())
        PyErr_Clear(); /* the slow way raises it again */
    return PyBool_FromLong(appended);
}

static PyMethodDef appender_methods[] = {
    {"append", (PyCFunction)(void (*)(void))appender_append, METH_FASTCALL, appender_append_doc},
    {"know", (PyCFunction)appender_know, METH_VARARGS, appender_know_doc},
    {"open", (PyCFunction)appender_open, METH_NOARGS, appender_open_doc},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef appender_members[] = {
    {"size", T_LONGLONG, offsetof(AppenderObject, size), 0, "Bytes in all of them."},
    {"partitions", T_INT, offsetof(AppenderObject, partitions), 0, "How many the topic has."},
    {"sticky", T_INT, offsetof(AppenderObject, sticky), 0, "Where records without a key go."},
    {"ready", T_BOOL, offsetof(AppenderObject, ready), 0, "Whether records may come at once."},
    {NULL, 0, 0, 0, NULL},
};

PyDoc_STRVAR(appender_doc, "Appender(room)\n--\n\nThe open batches of one topic.");

static PyType_Slot appender_slots[] = {
    {Py_tp_doc, (void *)appender_doc},
    {Py_tp_new, new_appender},
    {Py_tp_dealloc, dealloc_appender},
    {Py_tp_methods, appender_methods},
    {Py_tp_members, appender_members},
    {0, NULL},
};

static PyType_Spec appender_spec = {
    .name = "pyspark_kafka_rebalance.produce.encoder._encoder.Appender",
    .basicsize = sizeof(AppenderObject),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = appender_slots,
};

/* ---- functions ------------------------------------------------------------------------------- */

PyDoc_STRVAR(murmur2_doc, "murmur2(data, /)\n--\n\nThe hash of Java's Utils.murmur2.");

static PyObject *module_murmur2(PyObject *Py_UNUSED(module), PyObject *object) {
    Py_buffer data;
    if (PyObject_GetBuffer(object, &data, PyBUF_SIMPLE) < 0)
        return NULL;
    uint32_t hash = murmur2(data.buf, (size_t)data.len);
    PyBuffer_Release(&data);
    return PyLong_FromLong((int32_t)hash);
}

/* Reads (producer id, epoch, base sequence, transactional). */
static bool take_stamp(PyObject *object, Stamp *stamp) {
    long long producer_id;
    int base_sequence, transactional;
    short epoch;
    if (!PyArg_ParseTuple(object, "Lhip:stamp", &producer_id, &epoch, &base_sequence,
                          &transactional))
        return false;
    *stamp = (Stamp){producer_id, epoch, base_sequence, transactional};
    return true;
}

static bool is_batch(const Py_buffer *batch) {
    if (batch->len < HEADER_SIZE || batch->len > INT32_MAX) {
        PyErr_Format(PyExc_ValueError, "a record batch of %zd bytes", batch->len);
        return false;
    }
    return true;
}

PyDoc_STRVAR(stamp_doc, "stamp(batch, stamp, /)\n--\n\nWrite the sender into a batch, in place.");

static PyObject *module_stamp(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer batch;
    PyObject *object;
    Stamp stamp;
    if (!PyArg_ParseTuple(args, "w*O:stamp", &batch, &object))
        return NULL;
    if (is_batch(&batch) && take_stamp(object, &stamp))
        write_stamp(batch.buf, (size_t)batch.len, &stamp);
    PyBuffer_Release(&batch);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(stamped_header_doc,
             "stamped_header(batch, stamp, /)\n--\n\nThe header that the batch has then.");

static PyObject *module_stamped_header(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer batch;
    PyObject *object;
    Stamp stamp;
    if (!PyArg_ParseTuple(args, "y*O:stamped_header", &batch, &object))
        return NULL;
    uint8_t header[HEADER_SIZE];
    if (is_batch(&batch) && take_stamp(object, &stamp)) {
        memcpy(header, batch.buf, HEADER_SIZE);
        write_stamp(header, (size_t)batch.len, &stamp);
    }
    PyBuffer_Release(&batch);
    return PyErr_Occurred() ? NULL : PyBytes_FromStringAndSize((const char *)header, HEADER_SIZE);
}

static PyMethodDef encoder_module_methods[] = {
    {"murmur2", module_murmur2, METH_O, murmur2_doc},
    {"stamp", module_stamp, METH_VARARGS, stamp_doc},
    {"stamped_header", module_stamped_header, METH_VARARGS, stamped_header_doc},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(encoder_module_doc, "Arrow buffers to record batches, compiled.");

static struct PyModuleDef encoder_module_definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_encoder",
    .m_doc = encoder_module_doc,
    .m_size = -1,
    .m_methods = encoder_module_methods,
};

static bool add_type(PyObject *module, const char *name, PyObject *type) {
    if (type != NULL && PyModule_AddObject(module, name, type) == 0)
        return true;
    Py_XDECREF(type);
    return false;
}

/* As above; the type is also kept for checks. */
static bool keep_type(PyObject *module, const char *name, PyType_Spec *spec, PyTypeObject **kept) {
    if (*kept == NULL)
        *kept = (PyTypeObject *)PyType_FromSpec(spec);
    Py_XINCREF((PyObject *)*kept);
    return add_type(module, name, (PyObject *)*kept);
}

PyMODINIT_FUNC PyInit__encoder(void) {
    prepare_encoder();
    if (memory_type == NULL)
        memory_type = (PyTypeObject *)PyType_FromSpec(&memory_spec);
    if (memory_type == NULL)
        return NULL;
    PyObject *module = PyModule_Create(&encoder_module_definition);
    if (module != NULL && !(add_type(module, "Encoder", PyType_FromSpec(&encoder_spec)) &&
                            keep_type(module, "Records", &records_spec, &records_type) &&
                            keep_type(module, "Room", &room_spec, &room_type) &&
                            add_type(module, "Appender", PyType_FromSpec(&appender_spec)))) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}

#endif
