#include "src/formats/gguf/gguf_file.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "src/base/underlying.h"
#include "src/formats/bytes/byte_reader.h"
#include "src/formats/nvfp4.h"
#include "src/formats/wrong_file.h"

namespace mneme {
namespace {

constexpr std::size_t kMaxKeyBytes = 65535;  // the format's limit
constexpr std::size_t kMaxNameBytes = 64;    // the format's limit
constexpr std::size_t kMinEntryBytes = 8 + 1 + 4 + 1;
constexpr std::size_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;
constexpr std::int64_t kMaxElements = std::int64_t{1} << 48;
constexpr std::int64_t kMaxParts = 65535;  // the numbers are u16
constexpr std::string_view kReadTypes =
    "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K to Q6_K, IQ4_NL, IQ4_XS, MXFP4, NVFP4";

template <typename T>
T load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

bool is_integer(GgufType t) {
  return t != GgufType::kF32 && t != GgufType::kF64 && t != GgufType::kBool && t != GgufType::kString &&
         t != GgufType::kArray;
}

std::int64_t load_integer(GgufType type, const std::byte* p, std::string_view file, std::string_view key) {
  switch (type) {
    case GgufType::kU8:
      return load<std::uint8_t>(p);
    case GgufType::kI8:
      return load<std::int8_t>(p);
    case GgufType::kU16:
      return load<std::uint16_t>(p);
    case GgufType::kI16:
      return load<std::int16_t>(p);
    case GgufType::kU32:
      return load<std::uint32_t>(p);
    case GgufType::kI32:
      return load<std::int32_t>(p);
    case GgufType::kI64:
      return load<std::int64_t>(p);
    default:
      break;
  }
  const auto value = load<std::uint64_t>(p);
  if (!std::in_range<std::int64_t>(value))
    fail(ErrorKind::kFormat, "{}: '{}' is {}, which no such value can be", file, key, value);
  return value;
}

std::string type_text(const GgufValue& v) {
  return v.type == GgufType::kArray ? fmt::format("array of {}", gguf_type_name(v.element))
                                    : std::string(gguf_type_name(v.type));
}

[[noreturn]] void wrong_type(std::string_view file, std::string_view key, std::string_view expected,
                             const GgufValue& v) {
  fail(ErrorKind::kFormat, "{}: metadata '{}': expected {}, found {}", file, key, expected, type_text(v));
}

GgufType read_type(ByteReader& in, std::string_view file, std::string_view what) {
  const auto type = in.read<std::uint32_t>(what);
  if (type >= kGgufTypes)
    fail(ErrorKind::kFormat, "{}: {} has value type {}, which does not exist (types are 0 to {})", file, what, type,
         kGgufTypes - 1);
  return static_cast<GgufType>(type);
}

void check_booleans(std::span<const std::byte> bytes, std::string_view file, std::string_view what) {
  for (std::byte b : bytes)
    if (b > std::byte{1})
      fail(ErrorKind::kFormat, "{}: {}: a bool is 0 or 1, found {}", file, what, std::to_integer<unsigned>(b));
}

}  // namespace

GgufFile GgufFile::parse(std::span<const std::byte> bytes, std::string file, Tensors tensors, std::uint64_t alignment) {
  GgufFile out;
  out.file_ = std::move(file);
  refuse_lfs_pointer(bytes, out.file_);
  ByteReader in(bytes, out.file_);
  const auto magic = in.take(4, "magic");
  if (std::memcmp(magic.data(), "GGUF", 4) != 0)
    fail(ErrorKind::kFormat, "{}: not a GGUF file: expected the bytes 'GGUF' first, found {:02x} {:02x} {:02x} {:02x}",
         out.file_, std::to_integer<unsigned>(magic[0]), std::to_integer<unsigned>(magic[1]),
         std::to_integer<unsigned>(magic[2]), std::to_integer<unsigned>(magic[3]));
  out.version_ = in.read<std::uint32_t>("version");
  if (out.version_ == 0x02000000u || out.version_ == 0x03000000u)
    fail(ErrorKind::kUnsupported, "{}: GGUF for big-endian machines; expected little-endian", out.file_);
  if (out.version_ != 2 && out.version_ != 3)
    fail(ErrorKind::kUnsupported, "{}: GGUF version {}; expected 2 or 3", out.file_, out.version_);
  out.tensor_count_ = in.read<std::uint64_t>("tensor count");
  const auto n_entries = in.read<std::uint64_t>("metadata count");
  if (n_entries > in.remaining() / kMinEntryBytes)
    fail(ErrorKind::kFormat, "{}: metadata count {} cannot fit the {} bytes that follow", out.file_, n_entries,
         in.remaining());
  for (std::uint64_t i = 0; i < n_entries; ++i) out.read_entry(in);
  if (tensors == Tensors::kRead) out.read_tensors(in, alignment);
  return out;
}

void GgufFile::read_entry(ByteReader& in) {
  GgufEntry entry;
  entry.key = in.string(fmt::format("key of metadata entry {}", entries_.size()));
  if (entry.key.empty() || entry.key.size() > kMaxKeyBytes)
    fail(ErrorKind::kFormat, "{}: key of metadata entry {} has {} bytes; expected 1 to {}", file_, entries_.size(),
         entry.key.size(), kMaxKeyBytes);
  const std::string what = fmt::format("metadata '{}'", utf8_prefix(entry.key, 80));
  GgufValue& v = entry.value;
  v.type = v.element = read_type(in, file_, what);
  if (v.type == GgufType::kArray) {
    v.element = read_type(in, file_, what);
    v.count = in.read<std::uint64_t>(what);
    if (v.element == GgufType::kArray) fail(ErrorKind::kUnsupported, "{}: {} is an array of arrays", file_, what);
  }
  if (v.element == GgufType::kString) {
    // Every string takes at least 8 bytes for its length, so an excessive count fails here and not after 2^64
    // iterations.
    if (v.count > in.remaining() / 8)
      fail(ErrorKind::kFormat, "{}: {} claims {} strings, the file has {} bytes left", file_, what, v.count,
           in.remaining());
    ByteReader begin = in;
    for (std::uint64_t i = 0; i < v.count; ++i) in.string(what);
    v.bytes = begin.take(in.position() - begin.position(), what);
  } else {
    const std::size_t size = gguf_type_bytes(v.element);
    if (v.count > in.remaining() / size)
      fail(ErrorKind::kFormat, "{}: {} claims {} values of {}, the file has {} bytes left", file_, what, v.count,
           gguf_type_name(v.element), in.remaining());
    v.bytes = in.take(v.count * size, what);
    if (v.element == GgufType::kBool) check_booleans(v.bytes, file_, what);
  }
  if (!entry_by_key_.emplace(entry.key, entries_.size()).second)
    fail(ErrorKind::kFormat, "{}: {} occurs twice", file_, what);
  entries_.push_back(entry);
}

GgufFile::Place GgufFile::read_tensor(ByteReader& in) {
  GgufTensor t;
  t.name = in.string(fmt::format("name of tensor {}", tensors_.size()));
  if (t.name.empty() || t.name.size() > kMaxNameBytes)
    fail(ErrorKind::kFormat, "{}: name of tensor {} has {} bytes; expected 1 to {}", file_, tensors_.size(),
         t.name.size(), kMaxNameBytes);
  const auto rank = in.read<std::uint32_t>(t.name);
  if (rank < 1 || rank > 4)
    fail(ErrorKind::kFormat, "{}: tensor '{}' has {} dimensions; expected 1 to 4", file_, t.name, rank);
  t.rank = rank;
  std::int64_t elements = 1;
  for (std::uint32_t d = 0; d < rank; ++d) {
    const auto size = in.read<std::uint64_t>(t.name);
    if (size < 1 || std::cmp_greater(size, kMaxElements / elements))
      fail(ErrorKind::kFormat,
           "{}: dimension {} of tensor '{}' is {}: expected at least 1 and at most 2^48 elements in all", file_, d,
           t.name, size);
    t.dims[rank - 1 - d] = size;
    elements *= size;
  }
  const auto type = in.read<std::uint32_t>(t.name);
  const auto dtype = dtype_of_ggml(type);
  if (!dtype) {
    const std::string_view why = refusal_of_ggml(type);
    fail(ErrorKind::kUnsupported, "{}: tensor '{}' has type {}{}{}; this build reads {}", file_, t.name,
         ggml_type_name(type), why.empty() ? "" : ": ", why, kReadTypes);
  }
  t.dtype = *dtype;
  const DTypeInfo& info = dtype_info(t.dtype);
  if (const std::int64_t row = t.dims[rank - 1]; row % info.block != 0)
    fail(ErrorKind::kFormat, "{}: rows of tensor '{}' have {} elements; {} needs a multiple of {}", file_, t.name, row,
         info.name, info.block);
  const auto offset = in.read<std::uint64_t>(t.name);
  if (!tensor_by_name_.emplace(t.name, tensors_.size()).second)
    fail(ErrorKind::kFormat, "{}: tensor '{}' occurs twice", file_, t.name);
  tensors_.push_back(t);
  const int block_bytes = t.dtype == DType::kNVFP4 ? kGgufNvfp4Bytes : info.bytes;  // without the factor
  return {offset, (elements / info.block) * static_cast<std::uint64_t>(block_bytes)};
}

void GgufFile::read_tensors(ByteReader& in, std::uint64_t first_parts) {
  if (tensor_count_ > in.remaining() / kMinTensorBytes)
    fail(ErrorKind::kFormat, "{}: tensor count {} cannot fit the {} bytes that follow", file_, tensor_count_,
         in.remaining());
  std::vector<Place> places;
  for (std::uint64_t i = 0; i < tensor_count_; ++i) places.push_back(read_tensor(in));
  if (tensors_.empty()) {  // vocabulary-only files may end without padding
    static_cast<void>(alignment());
    return;
  }
  const std::uint64_t alignment = alignment_of_part(places, in.position(), in.position() + in.remaining(), first_parts);
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    if (places[i].offset % alignment != 0)
      fail(ErrorKind::kFormat, "{}: tensor '{}' is at offset {}; expected a multiple of {}", file_, tensors_[i].name,
           places[i].offset, alignment);
  const std::uint64_t misfit = in.position() % alignment;
  if (misfit != 0) in.take(alignment - misfit, "padding before the tensors");
  const auto data = in.take(in.remaining(), "tensor data");
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const auto [offset, size] = places[i];
    if (offset > data.size() || size > data.size() - offset)
      fail(ErrorKind::kFormat,
           "{}: tensor '{}' of type {} has {} bytes at offset {} of the data, which has {}: truncated or damaged",
           file_, tensors_[i].name, dtype_name(tensors_[i].dtype), size, offset, data.size());
    tensors_[i].data = data.subspan(offset, size);
  }
  check_overlaps(places);
}

std::optional<GgufSplit> GgufFile::split() const {
  const auto count = integer("split.count");
  if (!count || *count == 0 || *count == 1) return std::nullopt;
  const std::int64_t no = integer("split.no").value_or(0);
  if (*count < 0 || *count > kMaxParts || no < 0 || no >= *count)
    fail(ErrorKind::kFormat,
         "{}: split.no is {} and split.count {}: expected a number below the count, and at most {} parts", file_, no,
         *count, kMaxParts);
  return GgufSplit{no, *count, integer("split.tensors.count")};
}

void GgufFile::add_part(const GgufFile& part) {
  for (const GgufTensor& t : part.tensors_) {
    if (!tensor_by_name_.emplace(t.name, tensors_.size()).second)
      fail(ErrorKind::kFormat, "{}: tensor '{}' occurs twice: an earlier part has it", part.file_, t.name);
    tensors_.push_back(t);
  }
  tensor_count_ += part.tensor_count_;
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto it = tensor_by_name_.find(name);
  return it == tensor_by_name_.end() ? nullptr : &tensors_[it->second];
}

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto it = entry_by_key_.find(key);
  return it == entry_by_key_.end() ? nullptr : &entries_[it->second].value;
}

std::optional<std::int64_t> GgufFile::integer(std::string_view key) const {
  const GgufValue* v = find(key);
  if (v == nullptr) return std::nullopt;
  if (!is_integer(v->type)) wrong_type(file_, key, "an integer", *v);
  return load_integer(v->type, v->bytes.data(), file_, key);
}

std::optional<double> GgufFile::number(std::string_view key) const {
  const GgufValue* v = find(key);
  if (v == nullptr) return std::nullopt;
  if (v->type == GgufType::kF32) return double{load<float>(v->bytes.data())};
  if (v->type == GgufType::kF64) return load<double>(v->bytes.data());
  if (!is_integer(v->type)) wrong_type(file_, key, "a number", *v);
  return static_cast<double>(load_integer(v->type, v->bytes.data(), file_, key));
}

std::optional<bool> GgufFile::boolean(std::string_view key) const {
  const GgufValue* v = find(key);
  if (v == nullptr) return std::nullopt;
  if (v->type != GgufType::kBool) wrong_type(file_, key, "a bool", *v);
  return v->bytes[0] != std::byte{0};
}

std::optional<std::string_view> GgufFile::string(std::string_view key) const {
  const GgufValue* v = find(key);
  if (v == nullptr) return std::nullopt;
  if (v->type != GgufType::kString) wrong_type(file_, key, "a string", *v);
  return ByteReader(v->bytes, file_).string(key);
}

std::optional<std::vector<std::string_view>> GgufFile::strings(std::string_view key) const {
  const GgufValue* v = find(key);
  if (v == nullptr) return std::nullopt;
  if (v->type != GgufType::kArray || v->element != GgufType::kString) wrong_type(file_, key, "an array of string", *v);
  std::vector<std::string_view> out;
  out.reserve(v->count);  // bounded by the file size, see parse()
  ByteReader in(v->bytes, file_);
  for (std::uint64_t i = 0; i < v->count; ++i) {
    const auto raw = in.take(in.read<std::uint64_t>(key), key);
    out.emplace_back(reinterpret_cast<const char*>(raw.data()), raw.size());
  }
  return out;
}

std::optional<std::vector<std::int64_t>> GgufFile::integers(std::string_view key) const {
  const GgufValue* v = find(key);
  if (v == nullptr) return std::nullopt;
  const bool flags = v->type == GgufType::kArray && v->element == GgufType::kBool;
  if (v->type != GgufType::kArray || !(flags || is_integer(v->element)))
    wrong_type(file_, key, "an array of integers", *v);
  std::vector<std::int64_t> out;
  out.reserve(v->count);
  if (flags) {
    for (const std::byte flag : v->bytes) out.push_back(std::to_integer<std::int64_t>(flag));
    return out;
  }
  const std::size_t size = gguf_type_bytes(v->element);
  for (std::size_t i = 0; i < v->count; ++i)
    out.push_back(load_integer(v->element, v->bytes.data() + i * size, file_, key));
  return out;
}

std::optional<std::vector<float>> GgufFile::floats(std::string_view key) const {
  const GgufValue* v = find(key);
  if (v == nullptr) return std::nullopt;
  if (v->type != GgufType::kArray || v->element != GgufType::kF32) wrong_type(file_, key, "an array of f32", *v);
  std::vector<float> out(v->count);
  if (!out.empty()) std::memcpy(out.data(), v->bytes.data(), v->bytes.size());
  return out;
}

namespace {

constexpr std::size_t kShownBytes = 160;
constexpr std::uint64_t kShownElements = 6;

std::string cut(std::string_view text) {
  const std::string_view shown = utf8_prefix(text, kShownBytes);
  return shown.size() == text.size() ? std::string(text) : fmt::format("{}... ({} bytes)", shown, text.size());
}

std::string scalar_text(GgufType type, const std::byte* p) {
  switch (type) {
    case GgufType::kBool:
      return *p == std::byte{0} ? "false" : "true";
    case GgufType::kF32:
      return fmt::format("{}", load<float>(p));
    case GgufType::kF64:
      return fmt::format("{}", load<double>(p));
    case GgufType::kU64:
      return fmt::format("{}", load<std::uint64_t>(p));
    default:
      return fmt::format("{}", load_integer(type, p, "", ""));
  }
}

std::string value_text(const GgufValue& v, std::string_view file) {
  ByteReader in(v.bytes, file);
  if (v.type == GgufType::kString) return cut(in.string(""));
  if (v.type != GgufType::kArray) return scalar_text(v.type, v.bytes.data());
  std::string text = "[";
  for (std::uint64_t i = 0; i < std::min(v.count, kShownElements); ++i) {
    if (i > 0) text += ", ";
    if (v.element == GgufType::kString)
      text += fmt::format("\"{}\"", cut(in.string("")));
    else
      text += scalar_text(v.element, in.take(gguf_type_bytes(v.element), "").data());
  }
  return text + (v.count > kShownElements ? fmt::format(", ...] ({} values)", v.count) : "]");
}

}  // namespace

std::vector<CarriedMetadata> GgufFile::carried() const {
  constexpr std::array<std::string_view, 5> kWritten = {"general.architecture", "general.name", "general.file_type",
                                                        "general.quantization_version", "general.alignment"};
  const std::string architecture = std::string(string("general.architecture").value_or("")) + ".";
  const std::array<std::string_view, 5> replaced = {"tokenizer.", "mneme.", "split.", "quantize.", architecture};
  std::vector<CarriedMetadata> out;
  for (const GgufEntry& e : entries_) {
    if (std::find(kWritten.begin(), kWritten.end(), e.key) != kWritten.end()) continue;
    if (std::any_of(replaced.begin(), replaced.end(), [&](std::string_view p) { return e.key.starts_with(p); }))
      continue;
    std::string encoded;
    const auto append = [&](const auto& v) { encoded.append(reinterpret_cast<const char*>(&v), sizeof(v)); };
    append(underlying(e.value.type));
    if (e.value.type == GgufType::kArray) {
      append(underlying(e.value.element));
      append(e.value.count);
    }
    encoded.append(reinterpret_cast<const char*>(e.value.bytes.data()), e.value.bytes.size());
    out.push_back({std::string(e.key), std::move(encoded)});
  }
  return out;
}

std::vector<MetadataEntry> GgufFile::describe() const {
  std::vector<MetadataEntry> out;
  for (const GgufEntry& e : entries_)
    out.push_back({std::string(e.key), type_text(e.value), value_text(e.value, file_)});
  return out;
}

}  // namespace mneme
