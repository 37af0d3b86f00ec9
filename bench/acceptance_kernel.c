/* Softmax, rejection, inverse CDF and top-k in one pass: what compiled code could do in place of
 * numpy. Rows are float32 [v]; weights are exp(scale * (logit - largest)), float32, added up in
 * float64 by blocks of 256; draws are float64. A result of -1: no finite sum. */

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { BLOCK = 256, LANES = 16, MOST = 1024 };

/* e^x for x <= 0, to 2e-7 relative; 0 below -87. Written out so that the compiler vectorises it. */
static inline float power(float x) {
    float at = x < -87.0f ? -87.0f : x;
    float n = (at * 1.44269504f + 12582912.0f) - 12582912.0f;
    float r = (at - n * 0.693359375f) + n * 2.12194440e-4f;
    float y = 1.0f + r * (1.0f + r * (0.5f + r * (1.66666672e-1f + r * (4.16664853e-2f
              + r * (8.33336893e-3f + r * 1.39304355e-3f)))));
    int32_t bits = ((int32_t)n + 127) << 23;
    float two;
    memcpy(&two, &bits, sizeof two);
    return x < -87.0f ? 0.0f : y * two;
}

static float largest(const float *row, int64_t v) {
    float best[LANES];
    int64_t i = 0;
    for (int j = 0; j < LANES; j++) best[j] = -INFINITY;
    for (; i + LANES <= v; i += LANES)
        for (int j = 0; j < LANES; j++) best[j] = row[i + j] > best[j] ? row[i + j] : best[j];
    for (; i < v; i++) best[0] = row[i] > best[0] ? row[i] : best[0];
    for (int j = 1; j < LANES; j++) best[0] = best[j] > best[0] ? best[j] : best[0];
    return best[0];
}

static double sum(const float *w, int64_t n) {
    float lane[LANES] = {0};
    int64_t i = 0;
    double total = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) lane[j] += w[i + j];
    for (; i < n; i++) lane[0] += w[i];
    for (int j = 0; j < LANES; j++) total += lane[j];
    return total;
}

/* Weights [v] and their sums up to the end of each block. */
static double weigh(const float *row, int64_t v, float scale, float *w, double *sums) {
    float top = largest(row, v);
    double total = 0;
    for (int64_t start = 0; start < v; start += BLOCK) {
        int64_t n = v - start < BLOCK ? v - start : BLOCK;
        for (int64_t i = 0; i < n; i++) w[start + i] = power((row[start + i] - top) * scale);
        sums[start / BLOCK] = total += sum(w + start, n);
    }
    return total;
}

/* The place at `u` of the cumulative distribution. */
static int64_t pick(const float *w, int64_t v, const double *sums, double u) {
    int64_t blocks = (v + BLOCK - 1) / BLOCK, b = 0;
    double wanted = u * sums[blocks - 1];
    if (!(wanted < INFINITY)) return -1;
    while (b < blocks - 1 && sums[b] <= wanted) b++;
    int64_t last = b * BLOCK, stop = last + BLOCK < v ? last + BLOCK : v;
    double so_far = b ? sums[b - 1] : 0;
    for (int64_t i = b * BLOCK; i < stop; i++) {
        if (w[i] > 0) last = i;
        so_far += w[i];
        if (so_far > wanted) return i;
    }
    return last;
}

/* A drafted token; its weights and sums are kept for `accept_full`. */
int64_t choose_full(const float *row, int64_t v, float scale, double u, float *w, double *sums) {
    weigh(row, v, scale, w, sums);
    return pick(w, v, sums, u);
}

/* Number of drafted tokens that stand, and the next; q is what `choose_full` left: [k][v] weights,
 * [k][blocks] sums. accept [k]; next [k + 1]: the residuals' draws and the bonus'. */
int64_t accept_full(const float *rows, int64_t k, int64_t v, float scale, const int64_t *draft,
                    const float *q, const double *q_sums, const double *accept,
                    const double *next, float *w, double *sums, int64_t *token) {
    int64_t blocks = (v + BLOCK - 1) / BLOCK;
    for (int64_t i = 0; i <= k; i++) {
        double total = weigh(rows + i * v, v, scale, w, sums);
        if (i < k) {
            const float *its = q + i * v;
            double q_total = q_sums[(i + 1) * blocks - 1];
            if (accept[i] * its[draft[i]] * total < w[draft[i]] * q_total) continue;
            float ratio = (float)(q_total / total);
            total = 0;
            for (int64_t start = 0; start < v; start += BLOCK) {
                int64_t n = v - start < BLOCK ? v - start : BLOCK;
                for (int64_t j = start; j < start + n; j++) {
                    float left = w[j] * ratio - its[j];
                    w[j] = left > 0 ? left : 0;
                }
                sums[start / BLOCK] = total += sum(w + start, n);
            }
        }
        *token = pick(w, v, sums, next[i]);
        return i;
    }
    return -1;
}

/* Whether a is left behind b: a smaller logit, or an equal one of a higher id. */
static inline int below(float a, int32_t a_id, float b, int32_t b_id) {
    return a < b || (a == b && a_id > b_id);
}

static void sift(float *x, int32_t *id, int n, int at) {
    for (;;) {
        int least = at, left = 2 * at + 1;
        for (int child = left; child < left + 2 && child < n; child++)
            if (below(x[child], id[child], x[least], id[least])) least = child;
        if (least == at) return;
        float value = x[at];
        int32_t name = id[at];
        x[at] = x[least], id[at] = id[least];
        x[least] = value, id[least] = name;
        at = least;
    }
}

/* The top ids, rising, and their weights: a heap of the best so far; blocks whose largest logit
 * does not pass the least of it are skipped. */
static double narrow(const float *row, int64_t v, int top, float scale, int32_t *id, double *w) {
    float x[MOST], most = -INFINITY;
    for (int i = 0; i < top; i++) x[i] = row[i], id[i] = i;
    for (int i = top / 2 - 1; i >= 0; i--) sift(x, id, top, i);
    for (int64_t start = top; start < v; start += 4 * LANES) {
        int64_t stop = start + 4 * LANES < v ? start + 4 * LANES : v;
        if (!(largest(row + start, stop - start) > x[0])) continue;
        for (int64_t i = start; i < stop; i++) {
            if (!(row[i] > x[0])) continue;
            x[0] = row[i], id[0] = (int32_t)i;
            sift(x, id, top, 0);
        }
    }
    for (int i = 1; i < top; i++) { /* by id */
        float value = x[i];
        int32_t name = id[i];
        int j = i;
        for (; j && id[j - 1] > name; j--) x[j] = x[j - 1], id[j] = id[j - 1];
        x[j] = value, id[j] = name;
    }
    double total = 0;
    for (int i = 0; i < top; i++) most = x[i] > most ? x[i] : most;
    for (int i = 0; i < top; i++) total += w[i] = exp((double)(x[i] - most) * scale);
    return total;
}

static int64_t pick_narrow(const int32_t *id, const double *w, int n, double total, double u) {
    double so_far = 0, wanted = u * total;
    if (!(wanted < INFINITY)) return -1;
    int64_t last = id[0];
    for (int i = 0; i < n; i++) {
        if (w[i] > 0) last = id[i];
        so_far += w[i];
        if (so_far > wanted) return id[i];
    }
    return last;
}

static double weight_of(const int32_t *id, const double *w, int n, int64_t token) {
    for (int i = 0; i < n; i++)
        if (id[i] == token) return w[i];
    return 0;
}

int64_t choose_top(const float *row, int64_t v, float scale, double u, int top, int32_t *id,
                   double *w, double *total) {
    *total = narrow(row, v, top, scale, id, w);
    return pick_narrow(id, w, top, *total, u);
}

/* As `accept_full`; q is what `choose_top` left: [k][top] ids and weights, [k] totals. */
int64_t accept_top(const float *rows, int64_t k, int64_t v, float scale, const int64_t *draft,
                   const int32_t *q_id, const double *q, const double *q_total,
                   const double *accept, const double *next, int top, int64_t *token) {
    int32_t id[MOST];
    double w[MOST];
    for (int64_t i = 0; i <= k; i++) {
        double total = narrow(rows + i * v, v, top, scale, id, w);
        if (i < k) {
            const int32_t *its_id = q_id + i * top;
            const double *its = q + i * top;
            double mine = weight_of(id, w, top, draft[i]);
            double theirs = weight_of(its_id, its, top, draft[i]);
            if (accept[i] * theirs * total < mine * q_total[i]) continue;
            double ratio = q_total[i] / total;
            total = 0;
            for (int j = 0, l = 0; j < top; j++) {
                while (l < top && its_id[l] < id[j]) l++;
                double left = w[j] * ratio - (l < top && its_id[l] == id[j] ? its[l] : 0);
                total += w[j] = left > 0 ? left : 0;
            }
        }
        *token = pick_narrow(id, w, top, total, next[i]);
        return i;
    }
    return -1;
}
