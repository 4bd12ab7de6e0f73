// GGUF parser: metadata and tensors of a file, uninterpreted.
//
// Layout  "GGUF", version u32 (2 or 3), numbers of tensors and of metadata entries u64; metadata: key, type, value;
// tensors: name, rank, dimensions (innermost first), type, offset; padding to `general.alignment`; data.
// docs/reference/formats.md has the limits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/formats/checkpoint.h"
#include "src/formats/gguf/gguf_types.h"

namespace mneme {

struct GgufValue {
  GgufType type = GgufType::kU8;
  GgufType element = GgufType::kU8;  // of an array's elements; else equal to type
  std::uint64_t count = 1;           // of array elements
  std::span<const std::byte> bytes;  // the elements, as in the file
};

struct GgufEntry {
  std::string_view key;
  GgufValue value;
};

struct GgufTensor {
  std::string_view name;
  int rank = 1;
  std::array<std::int64_t, 4> dims{1, 1, 1, 1};  // outermost first, reversed from the file
  DType dtype = DType::kF32;
  std::span<const std::byte> data;
};

// What a part of a split file says about itself.
struct GgufSplit {
  std::int64_t no, count;               // from 0
  std::optional<std::int64_t> tensors;  // of all parts
};

class GgufFile {
 public:
  enum class Tensors { kRead, kSkip };  // kSkip: metadata only, tensors are not checked

  // Checks everything, copies nothing: names and values are views of `bytes`, which must outlive the object. `file`
  // names it in errors.
  //
  // Errors  kFormat, kUnsupported (version, tensor type, nested array; the message names it)
  // `alignment`: of the first part of a split file, for another part; 0: a whole file or the first part. A part without
  // a key of its own is padded by the first's (gguf-py) or by the default (llama.cpp): by the one under which its data
  // end where the file ends.
  static GgufFile parse(std::span<const std::byte> bytes, std::string file, Tensors tensors,
                        std::uint64_t alignment = 0);

  const std::string& file() const { return file_; }
  std::uint32_t version() const { return version_; }
  std::uint64_t alignment() const;                              // of tensors: general.alignment or the default
  std::uint64_t tensor_count() const { return tensor_count_; }  // from the header, also with kSkip
  const std::vector<GgufEntry>& entries() const { return entries_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufTensor* find_tensor(std::string_view name) const;

  // Nothing for a file that is whole. Errors  kFormat: numbers that cannot be.
  std::optional<GgufSplit> split() const;
  // Adds the tensors of another part, whose bytes must outlive this object too. Errors  kFormat: a name that is there.
  void add_part(const GgufFile& part);

  // Metadata by key; nothing where the key is absent. Errors  kFormat: another type, or out of range.
  const GgufValue* find(std::string_view key) const;
  std::optional<std::int64_t> integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;  // accepts integers too
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string_view> string(std::string_view key) const;
  std::optional<std::vector<std::string_view>> strings(std::string_view key) const;
  std::optional<std::vector<std::int64_t>> integers(std::string_view key) const;  // accepts bools: 0 and 1
  std::optional<std::vector<float>> floats(std::string_view key) const;

  // Metadata except tokenizer.*, the architecture's keys and keys that depend on the tensors' types.
  std::vector<CarriedMetadata> carried() const;
  // All metadata as text, long values truncated.
  std::vector<MetadataEntry> describe() const;

 private:
  void read_entry(class ByteReader& in);
  struct Place {
    std::uint64_t offset, bytes;  // in the data section
  };
  void read_tensors(class ByteReader& in, std::uint64_t first_parts);
  Place read_tensor(class ByteReader& in);
  std::uint64_t alignment_of_part(const std::vector<Place>& places, std::uint64_t begin, std::uint64_t size,
                                  std::uint64_t first_parts) const;
  void check_overlaps(const std::vector<Place>& places) const;

  std::string file_;
  std::uint32_t version_ = 0;
  std::uint64_t tensor_count_ = 0;
  std::vector<GgufEntry> entries_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string_view, std::size_t> entry_by_key_, tensor_by_name_;
};

}  // namespace mneme
