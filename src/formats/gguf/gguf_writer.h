// Writes a GGUF v3 file sequentially. The file appears under its name only when it is complete.
//
//   GgufWriter writer(path);
//   writer.put("general.architecture", "llama");
//   writer.add_tensor("token_embd.weight", {vocab, hidden}, DType::kBF16);  // declare all tensors first
//   writer.begin_data();
//   writer.write(bytes);                                                    // then their bytes, in order
//   writer.finish();
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/formats/gguf/gguf_types.h"
#include "src/tensor/dtype.h"

namespace mneme {

class GgufWriter {
 public:
  // Creates a temporary file in the same folder. Errors  kFile: the folder is not writable.
  explicit GgufWriter(std::filesystem::path path);
  // Removes the temporary file unless finish() returned.
  ~GgufWriter();
  GgufWriter(const GgufWriter&) = delete;
  GgufWriter& operator=(const GgufWriter&) = delete;

  // Requires  each key once; valid UTF-8.
  void put(std::string_view key, std::string_view value);
  void put(std::string_view key, const char* value) { put(key, std::string_view(value)); }
  void put(std::string_view key, std::uint32_t value);
  void put(std::string_view key, float value);
  void put(std::string_view key, bool value);
  void put(std::string_view key, std::span<const std::string> values);
  void put(std::string_view key, std::span<const std::int32_t> values);
  void put(std::string_view key, std::span<const float> values);
  // Type and value as the file holds them. Requires  they are well-formed: read from a GGUF file.
  void put_encoded(std::string_view key, std::string_view encoded);

  // dims: outermost first.
  void add_tensor(std::string_view name, std::initializer_list<std::int64_t> dims, DType dtype);

  void begin_data();
  // Requires  `bytes` does not cross the end of a tensor. Errors  kFile: the disk is full, ...
  void write(std::span<const std::byte> bytes);
  // Errors  kFile. Requires  every tensor is fully written.
  void finish();

  std::uint64_t bytes_written() const { return written_; }

 private:
  struct Pending {
    std::string name;
    std::vector<std::int64_t> dims;
    DType dtype;
    std::uint64_t bytes;
  };
  void key(std::string_view key, GgufType type);
  void write_raw(const void* data, std::size_t n);
  void pad();
  [[noreturn]] void fail_io(std::string_view doing) const;

  std::filesystem::path path_, temporary_;
  int fd_ = -1;
  std::string metadata_;
  std::uint64_t n_keys_ = 0;
  std::vector<Pending> tensors_;
  std::vector<char> out_;  // buffer of small writes
  std::uint64_t written_ = 0;
  std::size_t tensor_ = 0;          // tensor being written
  std::uint64_t tensor_bytes_ = 0;  // bytes of it written so far
  bool data_begun_ = false;
};

}  // namespace mneme
