// Where the tensors of a GGUF file lie: their alignment, and that none overlap.
#include <algorithm>
#include <numeric>
#include <vector>

#include "src/base/error.h"
#include "src/formats/gguf/gguf_file.h"

namespace mneme {

std::uint64_t GgufFile::alignment() const {
  const auto given = integer("general.alignment");
  if (!given) return kGgufDefaultAlignment;
  if (*given < 8 || *given > (1 << 20) || (*given & (*given - 1)) != 0)
    fail(ErrorKind::kFormat, "{}: general.alignment: expected a power of two from 8 to 1048576, found {}", file_,
         *given);
  return *given;
}

std::uint64_t GgufFile::alignment_of_part(const std::vector<Place>& places, std::uint64_t begin, std::uint64_t size,
                                          std::uint64_t first_parts) const {
  const std::uint64_t own = alignment();
  if (first_parts == 0 || first_parts == own || find("general.alignment") != nullptr) return own;
  std::uint64_t last = 0;  // end of the data, before its padding
  for (const Place& p : places) last = std::max(last, p.offset > size || p.bytes > size ? size : p.offset + p.bytes);
  const auto padded = [](std::uint64_t n, std::uint64_t to) { return (n + to - 1) / to * to; };
  for (const std::uint64_t a : {first_parts, own}) {
    const bool at_multiples =
        std::all_of(places.begin(), places.end(), [a](const Place& p) { return p.offset % a == 0; });
    const std::uint64_t data = padded(begin, a);
    if (at_multiples && (data + last == size || data + padded(last, a) == size)) return a;
  }
  fail(ErrorKind::kFormat,
       "{}: its tensors end where the file does neither with the first part's alignment of {} nor with {}, and it has "
       "no "
       "'general.alignment': truncated, damaged, or of another model",
       file_, first_parts, own);
}

void GgufFile::check_overlaps(const std::vector<Place>& places) const {
  std::vector<std::size_t> order(tensors_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return places[a].offset < places[b].offset; });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const Place before = places[order[i - 1]];
    if (before.offset + before.bytes > places[order[i]].offset)
      fail(ErrorKind::kFormat, "{}: tensors '{}' and '{}' overlap", file_, tensors_[order[i - 1]].name,
           tensors_[order[i]].name);
  }
}

}  // namespace mneme
