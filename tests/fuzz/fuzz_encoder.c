/* libFuzzer against the compiled encoder's core: whatever an Arrow array says of itself, nothing
 * outside its buffers is read, and what was written of it is read back by the decoder's core.
 *
 * make fuzz ARGS=-max_total_time=3600
 *
 * The first bytes choose the options and cut the rest into the buffers of the columns. Each buffer
 * is copied to memory of exactly its size, so that a step beyond it is one that AddressSanitizer
 * sees.
 */

#define ENCODER_CORE_ONLY
#include "../../pyspark_kafka_rebalance/produce/encoder/_encoder.c"

#include <stdio.h>

#define OPTION_BYTES 24
#define PARTITIONS 3

#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

typedef struct {
    const uint8_t *next;
    size_t left;
    uint8_t *copies[21];
    size_t count;
} Input;

static const uint8_t *cut(Input *input, size_t size) {
    uint8_t *copy = malloc(size ? size : 1);
    memcpy(copy, input->next, size);
    input->copies[input->count++] = copy;
    input->next += size;
    input->left -= size;
    return copy;
}

/* A column as take_column leaves it: there are as many numbers as there are rows, what they say is
 * the fuzzer's. False if nothing is left for it. */
static bool cut_column(Input *input, uint8_t options, uint8_t data_size, size_t rows, bool ends,
                       bool large, Column *column) {
    *column = (Column){0};
    if (!(options & 1))
        return true;
    column->given = true;
    column->large = large;
    column->offset = options >> 2 & 7;
    size_t numbers = (column->offset + rows + ends) * (large ? 8 : 4);
    size_t validity = options & 2 ? (column->offset + rows + 7) / 8 : 0;
    if (numbers + validity > input->left)
        return false;
    column->numbers = cut(input, numbers);
    if (options & 2)
        column->validity = cut(input, validity);
    column->data_size = !ends ? 0 : data_size < input->left ? data_size : input->left;
    if (ends)
        column->data = cut(input, column->data_size);
    return true;
}

static void check_batch(const OpenBatch *batch, const Encoding *encoding, size_t *rows) {
    REQUIRE(batch->count > 0 && batch->count <= encoding->limits.batch_records);
    REQUIRE(batch->data.size <= encoding->limits.batch_bytes || batch->count == 1);
    REQUIRE(batch->data.size <= encoding->limits.max_request_bytes || batch->count > 1);
    const uint8_t *p = batch->data.data;
    uint8_t header[HEADER_SIZE];
    memcpy(header, p, HEADER_SIZE);
    Stamp stamp = {7, 3, 100, true};
    write_stamp(header, batch->data.size, &stamp);
    uint8_t *stamped = malloc(batch->data.size);
    memcpy(stamped, p, batch->data.size);
    memcpy(stamped, header, HEADER_SIZE);
    for (int n = 0; n < 2; n++) {
        const uint8_t *log = n ? stamped : p;
        Columns columns = {.with_headers = true};
        Batch read;
        REQUIRE(read_batch(log, batch->data.size, INT64_MAX, &read));
        REQUIRE(read.size == batch->data.size && read.last_offset == batch->count - 1);
        REQUIRE(crc32c(log + CRC_START, read.size - CRC_START) == big_endian_32(log + 17));
        /* Timestamps and header keys that only Python's decoder reads are the fuzzer's, too. */
        Wanted none = {batch->count, 0, 0, true, -2, -1};
        REQUIRE(append_records(&columns, log + HEADER_SIZE, read.size - HEADER_SIZE, &none));
        REQUIRE(columns.rows == 0);
        Wanted every = {batch->count, 0, 0, true, 0, INT64_MAX};
        Columns plain = {.with_headers = false};
        REQUIRE(append_records(&plain, log + HEADER_SIZE, read.size - HEADER_SIZE, &every));
        REQUIRE(plain.rows == (size_t)batch->count);
        free_columns(&columns);
        free_columns(&plain);
    }
    free(stamped);
    *rows += (size_t)batch->count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < OPTION_BYTES)
        return 0;
    static bool ready = false;
    if (!ready) {
        prepare_encoder();
        ready = true;
    }
    const uint8_t *options = data;
    Input input = {.next = data + OPTION_BYTES, .left = size - OPTION_BYTES};
    Rows rows = {
        .rows = options[1],
        .header_count = options[2],
        .ticks_per_ms = options[0] & 1 ? 1 : options[0] & 2 ? 1000 : 1000000,
    };
    Encoding encoding = {
        .limits = {.batch_bytes = 1 + (size_t)options[3] * 8,
                   .batch_records = 1 + options[4],
                   .max_request_bytes = options[5] ? 1 + (size_t)options[5] * 16 : 1 << 20},
        .sealed = true,
    };
    bool large = options[0] & 4;
    if (cut_column(&input, options[6], options[7], rows.rows, true, large, &rows.keys) &&
        cut_column(&input, options[8], options[9], rows.rows, true, large, &rows.values) &&
        cut_column(&input, options[10], 0, rows.rows, true, large, &rows.headers) &&
        cut_column(&input, options[11], options[12], rows.header_count, true, large,
                   &rows.header_keys) &&
        cut_column(&input, options[13], options[14], rows.header_count, true, large,
                   &rows.header_values) &&
        cut_column(&input, options[15], 0, rows.rows, false, true, &rows.timestamps) &&
        cut_column(&input, options[16], 0, rows.rows, false, false, &rows.partitions)) {
        int32_t order[PARTITIONS] = {2, 0, 1};
        Sticky sticky = {(const uint8_t *)order, 1 + options[17] % PARTITIONS, 0};
        sticky.at = options[18] % sticky.count;
        Read read;
        int64_t refused = first_refused(&encoding, &rows, PARTITIONS, &read);
        REQUIRE((read == GOOD) == (refused == -1) && refused < (int64_t)rows.rows);
        Read appended = append_rows(&encoding, &rows, options[19], PARTITIONS, &sticky);
        REQUIRE(appended == read);
        REQUIRE(sticky.at < sticky.count);
        REQUIRE(close_all(&encoding));
        size_t found = 0;
        for (size_t n = 0; n < closed_count(&encoding); n++) {
            ClosedBatch *closed = closed_batch(&encoding, n);
            REQUIRE(closed->partition >= 0 && closed->partition < PARTITIONS);
            check_batch(&closed->batch, &encoding, &found);
        }
        REQUIRE(found == (refused < 0 ? rows.rows : (size_t)refused));
    }
    free_encoding(&encoding);
    for (size_t n = 0; n < input.count; n++)
        free(input.copies[n]);
    return 0;
}
