#include "src/formats/safetensors/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "src/base/size32.h"
#include "src/formats/bytes/byte_reader.h"
#include "src/formats/json.h"

namespace mneme {
namespace {

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the format's limit
constexpr std::int64_t kMaxElements = std::int64_t{1} << 48;

struct NamedType {
  std::string_view name;
  int bytes;
};

// In the order of SafetensorsType.
constexpr std::array<NamedType, 8> kTypes = {
    {{"BF16", 2}, {"F16", 2}, {"F32", 4}, {"F8_E4M3", 1}, {"I8", 1}, {"U8", 1}, {"I32", 4}, {"I64", 8}}};

SafetensorsType type_of_name(const std::string& type, std::string_view name, std::string_view file) {
  for (std::size_t i = 0; i < kTypes.size(); ++i)
    if (kTypes[i].name == type) return static_cast<SafetensorsType>(i);
  fail(ErrorKind::kUnsupported,
       "{}: tensor '{}' has type {}; this build reads BF16, F16, F32, and F8_E4M3, I8, U8, I32, I64 of quantised "
       "weights",
       file, name, type);
}

SafetensorsTensor read_tensor(const std::string& name, const JsonRef& entry, std::span<const std::byte> data) {
  SafetensorsTensor t;
  t.name = name;
  const std::string_view file = entry.file();
  t.type = type_of_name(entry.at("dtype").string(), name, file);
  const auto shape = entry.at("shape").elements();
  if (shape.size() > t.dims.size())
    fail(ErrorKind::kUnsupported, "{}: tensor '{}' has {} dimensions; expected at most 5", file, name, shape.size());
  t.rank = std::max(1, size32(shape));
  std::int64_t elements = 1;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const std::int64_t size = shape[d].integer();
    if (size < 1 || size > kMaxElements / elements) shape[d].wrong("at least 1 and at most 2^48 elements in all");
    t.dims[d] = size;
    elements *= size;
  }
  const JsonRef offsets = entry.at("data_offsets");
  const auto ends = offsets.elements();
  if (ends.size() != 2) offsets.wrong("two offsets");
  const std::int64_t begin = ends[0].integer(), end = ends[1].integer();
  if (begin < 0 || end < begin || std::cmp_greater(end, data.size()))
    fail(ErrorKind::kFormat, "{}: tensor '{}' lies at bytes {} to {} of the data, which has {}: truncated or damaged",
         file, name, begin, end, data.size());
  const std::int64_t size = kTypes[static_cast<std::size_t>(t.type)].bytes;
  if (end - begin != elements * size)
    fail(ErrorKind::kFormat, "{}: tensor '{}': its shape needs {} bytes, its offsets give {}", file, name,
         elements * size, end - begin);
  t.data = data.subspan(begin, end - begin);
  return t;
}

}  // namespace

std::string_view safetensors_type_name(SafetensorsType type) {
  return kTypes[static_cast<std::size_t>(type)].name;
}

std::optional<DType> float_dtype(SafetensorsType type) {
  switch (type) {
    case SafetensorsType::kBF16:
      return DType::kBF16;
    case SafetensorsType::kF16:
      return DType::kF16;
    case SafetensorsType::kF32:
      return DType::kF32;
    default:
      return std::nullopt;
  }
}

std::string SafetensorsTensor::shape() const {
  return fmt::format("{} [{}]", safetensors_type_name(type), fmt::join(std::span(dims).first(rank), ", "));
}

bool is_aligned(const SafetensorsTensor& t) {
  return reinterpret_cast<std::uintptr_t>(t.data.data()) % kTypes[static_cast<std::size_t>(t.type)].bytes == 0;
}

float float_at(const SafetensorsTensor& t, std::int64_t i) {
  switch (t.type) {
    case SafetensorsType::kF16:
      return reinterpret_cast<const f16*>(t.data.data())[i];
    case SafetensorsType::kBF16:
      return reinterpret_cast<const bf16*>(t.data.data())[i];
    default:
      return reinterpret_cast<const float*>(t.data.data())[i];
  }
}

std::vector<SafetensorsTensor> parse_safetensors(std::span<const std::byte> bytes, std::string_view file) {
  ByteReader in(bytes, file);
  const auto header_bytes = in.read<std::uint64_t>("header length");
  if (header_bytes > kMaxHeaderBytes)
    fail(ErrorKind::kFormat, "{}: header length: expected at most {}, found {}", file, kMaxHeaderBytes, header_bytes);
  const auto header = in.take(header_bytes, "header");
  const auto data = bytes.subspan(in.position());
  const Json json = parse_json({reinterpret_cast<const char*>(header.data()), header.size()}, file, kMaxHeaderBytes);
  const JsonRef root(json, file);
  if (!root.is_object()) root.wrong("an object");

  std::vector<SafetensorsTensor> tensors;
  for (const auto& [name, value] : json.items()) {
    if (name == "__metadata__") continue;
    tensors.push_back(read_tensor(name, root.at(name), data));
  }
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.data.data() < b.data.data(); });
  const std::byte* next = data.data();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::byte* begin = tensors[i].data.data();
    if (begin < next)
      fail(ErrorKind::kFormat, "{}: tensors '{}' and '{}' overlap", file, tensors[i - 1].name, tensors[i].name);
    if (begin > next)
      fail(ErrorKind::kFormat, "{}: {} bytes before tensor '{}' belong to none", file, begin - next, tensors[i].name);
    next = begin + tensors[i].data.size();
  }
  if (next != data.data() + data.size())
    fail(ErrorKind::kFormat, "{}: {} bytes at the end belong to no tensor", file, data.data() + data.size() - next);
  return tensors;
}

}  // namespace mneme
