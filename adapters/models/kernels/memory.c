/* Whole passes over memory: the checksum that hexpo.domain.digest defines (sums of the rows and of
 * the columns of each block of words, times odd numbers of their place, folded; its eager twin is
 * there), and copies that do not go through the cache.
 */
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define ROWS 64
#define COLUMNS 1021
#define ALONE (1 << 20) /* words that one thread is through with before a second one begins */

typedef int64_t i64;
typedef uint64_t u64;

/* splitmix64 of a place, odd. */
static inline u64 odd(u64 place) {
    u64 x = (place + 1) * 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return (x ^ (x >> 31)) | 1;
}

static inline u64 folded(u64 sum, u64 place) {
    i64 product = (i64)(sum * odd(place));
    return (u64)(product ^ (product >> 32));
}

static u64 of_block(const u64 *words, i64 height, u64 place) {
    u64 columns[COLUMNS] = {0}, total = 0;
    for (i64 i = 0; i < height; i++, words += COLUMNS) {
        u64 row = 0;
        for (i64 j = 0; j < COLUMNS; j++) {
            row += words[j];
            columns[j] += words[j];
        }
        total += folded(row, place + i);
    }
    for (i64 j = 0; j < COLUMNS; j++) total += folded(columns[j], place + height + j);
    return total;
}

void checksum(i64 threads, const u64 *words, i64 count, u64 *out) {
    i64 rows = count / COLUMNS, blocks = (rows + ROWS - 1) / ROWS;
    u64 total = 0;
    threads = count <= ALONE ? 1 : threads;
#pragma omp parallel for schedule(static) num_threads(threads) reduction(+ : total)
    for (i64 i = 0; i < blocks; i++) {
        i64 first = i * ROWS, height = rows - first < ROWS ? rows - first : ROWS;
        total += of_block(words + first * COLUMNS, height, i * (ROWS + COLUMNS));
    }
    u64 place = rows / ROWS * (ROWS + COLUMNS) + rows % ROWS + COLUMNS;
    for (i64 i = rows * COLUMNS; i < count; i++, place++) total += folded(words[i], place);
    *out = total;
}

/* The same of each of some tensors. */
void checksums(i64 threads, const u64 *const *words, const i64 *counts, i64 tensors, u64 *out) {
    for (i64 i = 0; i < tensors; i++) checksum(threads, words[i], counts[i], out + i);
}

#define LINE 64
#define PART (1 << 20) /* bytes that a thread copies at a time */

static void copy_part(char *target, const char *source, i64 count) {
    i64 i = 0;
#ifdef __SSE2__
    i64 first = -(i64)(uintptr_t)target & (LINE - 1);
    i = first < count ? first : count;
    memcpy(target, source, i);
    for (; i + LINE <= count; i += LINE) {
        const __m128i *from = (const __m128i *)(source + i);
        __m128i *to = (__m128i *)(target + i);
        for (int j = 0; j < LINE / 16; j++) _mm_stream_si128(to + j, _mm_loadu_si128(from + j));
    }
    _mm_sfence();
#endif
    memcpy(target + i, source + i, count - i);
}

/* The target is not read before it is written, and does not drive other memory out of the cache. */
void copy_past_cache(i64 threads, char *target, const char *source, i64 count) {
    i64 parts = (count + PART - 1) / PART;
    threads = count <= ALONE * 8 ? 1 : threads;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (i64 i = 0; i < parts; i++) {
        i64 first = i * PART;
        copy_part(target + first, source + first, count - first < PART ? count - first : PART);
    }
}
