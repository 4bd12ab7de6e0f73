#include "src/formats/gguf/gguf_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/underlying.h"
#include "src/text/unicode/utf8.h"

namespace mneme {
namespace {

constexpr std::size_t kFlushBytes = std::size_t{1} << 20;

template <typename T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

void append_string(std::string& out, std::string_view text) {
  MNEME_CHECK(find_invalid_utf8(text) == kValidUtf8, "a string for a GGUF file is not UTF-8: {} bytes", text.size());
  append(out, text.size());
  out.append(text);
}

template <typename T>
void append_array(std::string& out, GgufType type, std::span<const T> values) {
  append(out, underlying(type));
  append(out, values.size());
  out.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}

}  // namespace

GgufWriter::GgufWriter(std::filesystem::path path) : path_(std::move(path)) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path_, ignored))
    fail(ErrorKind::kFile, "{}: expected a file to write, found a folder", path_.string());
  temporary_ = path_;
  temporary_ += fmt::format(".{}.part", ::getpid());
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) fail(ErrorKind::kFile, "{}: cannot be written: {}", path_.string(), std::strerror(errno));
}

GgufWriter::~GgufWriter() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void GgufWriter::fail_io(std::string_view doing) const {
  fail(ErrorKind::kFile, "{}: {} failed: {}", path_.string(), doing, std::strerror(errno));
}

void GgufWriter::key(std::string_view key, GgufType type) {
  MNEME_CHECK(!data_begun_, "metadata '{}' after the data", key);
  append_string(metadata_, key);
  append(metadata_, underlying(type));
  ++n_keys_;
}

void GgufWriter::put(std::string_view k, std::string_view value) {
  key(k, GgufType::kString);
  append_string(metadata_, value);
}
void GgufWriter::put(std::string_view k, std::uint32_t value) {
  key(k, GgufType::kU32);
  append(metadata_, value);
}
void GgufWriter::put(std::string_view k, float value) {
  key(k, GgufType::kF32);
  append(metadata_, value);
}
void GgufWriter::put(std::string_view k, bool value) {
  key(k, GgufType::kBool);
  append(metadata_, std::uint8_t{value});
}
void GgufWriter::put(std::string_view k, std::span<const std::string> values) {
  key(k, GgufType::kArray);
  append(metadata_, underlying(GgufType::kString));
  append(metadata_, values.size());
  for (const std::string& value : values) append_string(metadata_, value);
}
void GgufWriter::put(std::string_view k, std::span<const std::int32_t> values) {
  key(k, GgufType::kArray);
  append_array(metadata_, GgufType::kI32, values);
}
void GgufWriter::put(std::string_view k, std::span<const float> values) {
  key(k, GgufType::kArray);
  append_array(metadata_, GgufType::kF32, values);
}
void GgufWriter::put_encoded(std::string_view k, std::string_view encoded) {
  MNEME_CHECK(!data_begun_, "metadata '{}' after the data", k);
  append_string(metadata_, k);
  metadata_.append(encoded);
  ++n_keys_;
}

void GgufWriter::add_tensor(std::string_view name, std::initializer_list<std::int64_t> dims, DType dtype) {
  MNEME_CHECK(!data_begun_ && dims.size() >= 1 && dims.size() <= 4, "tensor '{}' with {} dimensions", name,
              dims.size());
  std::int64_t rows = 1;
  for (const std::int64_t d : dims) rows *= d;
  const std::int64_t row = *(dims.end() - 1);
  rows /= row;
  tensors_.push_back({std::string(name), dims, dtype, rows * row_bytes(dtype, row)});
}

void GgufWriter::begin_data() {
  MNEME_CHECK(!data_begun_, "begin_data() twice");
  data_begun_ = true;
  std::string head = "GGUF";
  append(head, std::uint32_t{3});
  append(head, tensors_.size());
  append(head, n_keys_);
  head += metadata_;
  std::uint64_t offset = 0;
  for (const Pending& t : tensors_) {
    append_string(head, t.name);
    append(head, static_cast<std::uint32_t>(t.dims.size()));
    for (auto d = t.dims.rbegin(); d != t.dims.rend(); ++d) append(head, static_cast<std::uint64_t>(*d));
    append(head, ggml_of_dtype(t.dtype));
    append(head, offset);
    offset += (t.bytes + kGgufDefaultAlignment - 1) / kGgufDefaultAlignment * kGgufDefaultAlignment;
  }
  write_raw(head.data(), head.size());
  pad();
}

void GgufWriter::write(std::span<const std::byte> bytes) {
  MNEME_CHECK(data_begun_ && tensor_ < tensors_.size() && bytes.size() <= tensors_[tensor_].bytes - tensor_bytes_,
              "{} bytes more than tensor {} of {} has", bytes.size(), tensor_, tensors_.size());
  write_raw(bytes.data(), bytes.size());
  tensor_bytes_ += bytes.size();
  if (tensor_bytes_ < tensors_[tensor_].bytes) return;
  pad();
  ++tensor_;
  tensor_bytes_ = 0;
}

void GgufWriter::pad() {
  static constexpr char kZeros[kGgufDefaultAlignment] = {};
  write_raw(kZeros, (kGgufDefaultAlignment - written_ % kGgufDefaultAlignment) % kGgufDefaultAlignment);
}

void GgufWriter::write_raw(const void* data, std::size_t n) {
  const auto* p = static_cast<const char*>(data);
  out_.insert(out_.end(), p, p + n);
  written_ += n;
  if (out_.size() < kFlushBytes && tensor_ < tensors_.size()) return;
  for (std::size_t done = 0; done < out_.size();) {
    const ssize_t k = ::write(fd_, out_.data() + done, out_.size() - done);
    if (k < 0 && errno == EINTR) continue;
    if (k < 0) fail_io("writing");
    done += k;
  }
  out_.clear();
}

void GgufWriter::finish() {
  MNEME_CHECK(data_begun_ && tensor_ == tensors_.size(), "{} of {} tensors written", tensor_, tensors_.size());
  write_raw(nullptr, 0);
  if (::fsync(fd_) != 0) fail_io("writing to the disk");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_io("renaming the finished file");
  ::close(std::exchange(fd_, -1));
}

}  // namespace mneme
