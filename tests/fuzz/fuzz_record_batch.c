/* libFuzzer against the compiled decoder's core: whatever the bytes are, it stays inside them, and
 * what it made of them is a set of columns that Arrow may read.
 *
 * make fuzz ARGS=-max_total_time=3600
 *
 * The first bytes choose the options; checksums are not compared as a rule, since hardly any input
 * would get past them. The rest is copied to memory of exactly its size, so that a step beyond it
 * is one that AddressSanitizer sees.
 */

#define RECORD_BATCH_CORE_ONLY
#include "../../pyspark_kafka_rebalance/fetch/_record_batch.c"

#include <stdio.h>

#define OPTION_BYTES 8

#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static void check_strings(const Strings *strings, size_t rows, bool utf8) {
    REQUIRE(strings->ends.size == rows * sizeof(int32_t));
    int32_t before = 0;
    for (size_t row = 0; row < rows; row++) {
        int32_t end;
        memcpy(&end, strings->ends.data + row * sizeof end, sizeof end);
        REQUIRE(end >= before);
        if (utf8 && strings->data.data != NULL)
            REQUIRE(is_utf8(strings->data.data + before, (size_t)(end - before)));
        before = end;
    }
    REQUIRE((size_t)before == strings->data.size);
    int32_t last = -1;
    for (size_t i = 0; i < strings->nulls.size; i += sizeof(int32_t)) {
        int32_t row;
        memcpy(&row, strings->nulls.data + i, sizeof row);
        REQUIRE(row > last && (size_t)row < rows);
        last = row;
    }
}

static void check_columns(const Columns *columns, int64_t from, int64_t to) {
    size_t rows = columns->rows;
    check_strings(&columns->keys, rows, false);
    check_strings(&columns->values, rows, false);
    REQUIRE(columns->offsets.size == rows * sizeof(int64_t));
    REQUIRE(columns->timestamps.size == rows * sizeof(int64_t));
    REQUIRE(columns->timestamp_types.size == rows * sizeof(int32_t));
    REQUIRE(columns->timestamp_nulls.size == 0); /* left to Python */
    for (size_t row = 0; row < rows; row++) {
        int64_t offset, timestamp;
        memcpy(&offset, columns->offsets.data + row * sizeof offset, sizeof offset);
        REQUIRE(offset >= from && offset < to);
        memcpy(&timestamp, columns->timestamps.data + row * sizeof timestamp, sizeof timestamp);
        REQUIRE(timestamp % 1000 == 0 && timestamp / 1000 <= MAX_TIMESTAMP_MS &&
                timestamp / 1000 >= -MAX_TIMESTAMP_MS);
    }
    size_t headers = header_count(columns);
    check_strings(&columns->header_keys, headers, true);
    check_strings(&columns->header_values, headers, false);
    REQUIRE(columns->header_keys.nulls.size == 0);
    if (!columns->with_headers) {
        REQUIRE(headers == 0 && columns->header_ends.size == 0);
        return;
    }
    REQUIRE(columns->header_ends.size == rows * sizeof(int32_t));
    int32_t before = 0;
    for (size_t row = 0; row < rows; row++) {
        int32_t end;
        memcpy(&end, columns->header_ends.data + row * sizeof end, sizeof end);
        REQUIRE(end >= before);
        before = end;
    }
    REQUIRE((size_t)before == headers);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < OPTION_BYTES)
        return 0;
    static bool ready = false;
    if (!ready) {
        choose_crc32c();
        ready = true;
    }
    const uint8_t *options = data;
    size_t length = size - OPTION_BYTES;
    uint8_t *bytes = malloc(length ? length : 1);
    memcpy(bytes, data + OPTION_BYTES, length);

    Columns columns = {.with_headers = options[0] & 1};
    int64_t from = options[1];
    int64_t to = options[0] & 2 ? INT64_MAX : from + options[2];
    if (options[0] & 4) { /* the records inside a batch */
        Wanted wanted = {
            .count = options[3],
            .base_offset = options[0] & 8 ? INT64_MAX - options[4] : options[4],
            .base_timestamp_ms = options[0] & 64   ? INT64_MAX
                                 : options[0] & 16 ? MAX_TIMESTAMP_MS
                                                   : options[5],
            .same_timestamp = options[0] & 32,
            .from = from,
            .to = to,
        };
        bool taken = append_records(&columns, bytes, length, &wanted);
        REQUIRE(taken || columns.rows == 0);
        check_columns(&columns, from, to);
    } else {
        Extent extent = {
            .check_crcs = options[0] & 8,
            .transactions = options[0] & 16,
            .from = from,
            .to = to,
            .full_rows = options[3] ? options[3] : SIZE_MAX,
            .full_bytes = SIZE_MAX,
        };
        size_t stopped = extend(&columns, bytes, length, 0, &extent);
        REQUIRE(stopped <= length);
        check_columns(&columns, from, to);
        int64_t after;
        int32_t leader_epoch;
        size_t skimmed = skim(bytes, length, to, &after, &leader_epoch);
        REQUIRE(skimmed <= length && after >= -1);
        REQUIRE((after == -1) == (skimmed == 0));
        REQUIRE(crc32c(bytes, length) == crc32c_portable(bytes, length));
    }
    free_columns(&columns);
    free(bytes);
    return 0;
}
