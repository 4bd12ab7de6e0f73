#include "src/formats/gguf/gguf_parts.h"

#include <fmt/format.h>

#include <string>
#include <system_error>
#include <utility>

#include "src/base/error.h"

namespace mneme {
namespace {

std::string suffix_of(std::int64_t no, std::int64_t count) {
  return fmt::format("-{:05}-of-{:05}.gguf", no + 1, count);
}

// The path of part `no`, where `path` is that of part `own`. Empty: the name has not the form of a part's.
std::filesystem::path part_path(const std::filesystem::path& path, const GgufSplit& own, std::int64_t no) {
  const std::string name = path.filename().string(), suffix = suffix_of(own.no, own.count);
  if (!name.ends_with(suffix)) return {};
  return path.parent_path() / (name.substr(0, name.size() - suffix.size()) + suffix_of(no, own.count));
}

GgufFile parse_part(const MappedFile& mapping, const std::filesystem::path& path, const GgufSplit& first,
                    std::int64_t no, std::uint64_t alignment) {
  GgufFile part = GgufFile::parse(mapping.bytes(), path.string(), GgufFile::Tensors::kRead, alignment);
  const auto split = part.split();
  if (!split)
    fail(ErrorKind::kFormat, "{}: expected part {} of {}, found a whole file", path.string(), no + 1, first.count);
  if (split->no != no || split->count != first.count)
    fail(ErrorKind::kFormat, "{}: expected part {} of {}, found part {} of {}", path.string(), no + 1, first.count,
         split->no + 1, split->count);
  return part;
}

}  // namespace

void expect_first_part(const GgufFile& file, const std::filesystem::path& path) {
  const auto split = file.split();
  if (!split || split->no == 0) return;
  const std::filesystem::path first = part_path(path, *split, 0);
  fail(ErrorKind::kFormat, "{}: part {} of {}; open the first, {}", path.string(), split->no + 1, split->count,
       first.empty() ? "whose name ends in " + suffix_of(0, split->count) : first.string());
}

std::vector<MappedFile> add_other_parts(GgufFile& first, const std::filesystem::path& path) {
  const auto split = first.split();
  if (!split) return {};
  expect_first_part(first, path);
  if (part_path(path, *split, 0).empty())
    fail(ErrorKind::kFormat, "{}: part 1 of {}; expected a name that ends in {}, by which the others are found",
         path.string(), split->count, suffix_of(0, split->count));
  std::vector<MappedFile> mappings;
  const std::uint64_t alignment = first.alignment();
  for (std::int64_t no = 1; no < split->count; ++no) {
    const std::filesystem::path other = part_path(path, *split, no);
    std::error_code ignored;
    if (!std::filesystem::exists(other, ignored))
      fail(ErrorKind::kFile, "{}: is missing, part {} of {} of the model", other.string(), no + 1, split->count);
    mappings.emplace_back(other);
    first.add_part(parse_part(mappings.back(), other, *split, no, alignment));
  }
  const std::int64_t found = first.tensors().size();
  if (split->tensors && *split->tensors != found)
    fail(ErrorKind::kFormat, "{}: expected {} tensors in {} parts, found {}", path.string(), *split->tensors,
         split->count, found);
  return mappings;
}

}  // namespace mneme
