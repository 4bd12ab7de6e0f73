#include "src/parallel/collective.h"

#include <vector>

#include "src/base/check.h"
#include "src/base/error.h"

namespace mneme {

void expect_agreement(Collective& ranks, std::string_view what, std::uint64_t value) {
  std::vector<std::uint64_t> all(ranks.size());
  ranks.all_gather(std::as_bytes(std::span(&value, 1)), std::as_writable_bytes(std::span(all)));
  for (std::size_t r = 0; r < all.size(); ++r)
    if (all[r] != all[0]) fail(ErrorKind::kDevice, "ranks 0 and {} have not the same {}", r, what);
}

RankRange rank_range(std::int64_t n, int rank, int size) {
  MNEME_CHECK(size > 0 && rank >= 0 && rank < size && n % size == 0, "{} parts for rank {} of {}", n, rank, size);
  return {.first = n / size * rank, .end = n / size * (rank + 1)};
}

}  // namespace mneme
