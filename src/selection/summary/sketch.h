// A sketch of a page's keys: their mean, and r coefficients a token in a basis that the head's pages share:
// index=sketch:r.
//
// Fit    U: an orthonormal basis of r rows that captures the covariance of keys around their page means: 10 rounds of
//        subspace iteration from the r channels of the largest variance. C: the covariance of what U leaves, trace 1.
// Build  per page its mean less the head's mean key, in 8 bits with one f16 scale (largest channel / 127); per token
//        U (x - mean) in units of each direction's deviation d, in 4 bits with one f16 scale a page (largest of them /
//        7): a channel 20 times as wide as the others takes a direction, not everybody's bits. The mean square of what U
//        leaves in a byte (spread.h).
// Score  of token t: e_t = alpha (q . mean + (d U q) . z_t) + gain(alpha^2 q^T C q var), divided by alpha;
//        of a page: log(sum over its tokens of exp(e_t)) / alpha. gain is spread_gain with c of `page` samples.
//
// Layout of an entry: [D] i8 mean, [r, page / 2] nibbles (row i: coefficient i of every token), f16 scale of the mean,
// f16 scale of the coefficients, u8 variance, padded to 2 bytes.
// Frame, one a head, f32: [D] mean key, [r, D] U, [D, D] C, [r] d.
//
// NaN       a key that is not finite makes its page's scores NaN.
// Ties      equal tokens of equal entries score equal, bit for bit, at any index.
// Requires  pages of a multiple of 8 tokens, at most 128; r from 1 to 32, at most D (compile() takes D where a recipe has
//           more).
#pragma once

#include "src/selection/summary/centroids.h"

namespace mneme {

inline constexpr std::int32_t kMaxSketchRank = 32;

std::size_t sketch_entry_bytes(std::int32_t head_dim, std::int32_t page, std::int32_t r);
std::int64_t sketch_frame_floats(std::int32_t head_dim, std::int32_t r);

void sketch_fit_ref(const float* keys, std::int32_t n_pages, std::int32_t page, std::int32_t head_dim, std::int32_t r,
                    float* frame);
void sketch_fit_cpu(const float* keys, std::int32_t n_pages, std::int32_t page, std::int32_t head_dim, std::int32_t r,
                    float* frame);
void sketch_build_ref(const float* keys, std::int32_t page, std::int32_t head_dim, std::int32_t r, const float* frame,
                      std::byte* entry);
void sketch_build_cpu(const float* keys, std::int32_t page, std::int32_t head_dim, std::int32_t r, const float* frame,
                      std::byte* entry);
// by_token: scores [group, n * page], one a token; else one a page.
void sketch_score_ref(const SummaryScores& task, std::int32_t r, bool by_token);
void sketch_score_cpu(const SummaryScores& task, std::int32_t r, bool by_token);

}  // namespace mneme
