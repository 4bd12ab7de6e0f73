// Writing a session's file.
#include <xxhash.h>

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "src/base/atomic_file.h"
#include "src/base/check.h"
#include "src/base/size32.h"
#include "src/base/underlying.h"
#include "src/engine/session/session_file.h"
#include "src/formats/bytes/byte_writer.h"

namespace mneme {
namespace {

using Layout = SessionLayout;

ByteWriter model_section(const SessionIdentity& m) {
  ByteWriter b;
  b.put(std::string_view(m.architecture));
  b.put(std::string_view(m.name));
  b.put(dtype_name(m.kv.dtype));
  b.put(m.vocab);
  b.put(std::int64_t{m.kv.n_layers});
  b.put(std::int64_t{m.kv.n_kv_heads});
  b.put(std::int64_t{m.kv.head_dim});
  b.put(m.weights);
  b.put(m.tokenizer);
  b.put(m.rope);
  return b;
}

ByteWriter state_section(const SessionContent& c) {
  ByteWriter b;
  b.put(std::uint8_t{c.answered});
  b.put(underlying(c.framing));
  b.put(std::uint8_t{c.document.has_value()});
  b.put(std::uint8_t{c.random.has_value()});
  b.put(c.random.value_or(RandomPosition{}).seed);
  b.put(c.random.value_or(RandomPosition{}).draws);
  b.put(std::ssize(c.tokens));
  b.put(std::int64_t{c.n_computed});
  return b;
}

ByteWriter document_section(const SessionContent& c) {
  ByteWriter b;
  if (!c.document) return b;
  b.put(std::string_view(c.document->document));
  b.put(std::string_view(c.document->system));
  return b;
}

ByteWriter method_section(const SessionContent& c) {
  ByteWriter b;
  auto head = c.method->heads.begin();
  for (std::int32_t layer = 0; layer < c.identity.kv.n_layers; ++layer) {
    b.put(c.method->budgets[layer]);
    for (std::int32_t h = 0; h < c.identity.kv.n_kv_heads; ++h, ++head) {
      b.put<std::uint32_t>(size32(head->stored));
      for (const TokenRange& r : head->stored) {
        b.put(r.begin);
        b.put(r.end);
      }
      b.put<std::uint32_t>(size32(head->mass));
      b.put(std::as_bytes(std::span(head->mass)));
    }
  }
  return b;
}

ByteWriter reading_section(const SavedReading& reading) {
  ByteWriter b;
  b.put(std::string_view(reading.recipe));
  b.put(std::span<const std::byte>(reading.state));
  return b;
}

// Appends sections one after the other and remembers where they are.
class Writer {
 public:
  Writer(const std::filesystem::path& path, std::uint32_t version, Links links)
      : file_(path, links), version_(version), hash_(XXH3_createState(), XXH3_freeState) {
    MNEME_CHECK(hash_ != nullptr, "no memory for a checksum");
    static constexpr std::byte kNothing[Layout::header(Layout::kVersion)] = {};
    file_.append(std::span(kNothing).first(Layout::header(version)));
  }

  void begin() {
    static constexpr std::byte kZeros[Layout::kAlignment] = {};
    const std::uint64_t past = file_.size() % Layout::kAlignment;
    if (past != 0) file_.append(std::span(kZeros).first(Layout::kAlignment - past));
    entries_[n_].offset = file_.size();
    XXH3_64bits_reset(hash_.get());
  }
  void append(std::span<const std::byte> bytes) {
    XXH3_64bits_update(hash_.get(), bytes.data(), bytes.size());
    file_.append(bytes);
  }
  void end() {
    entries_[n_].bytes = file_.size() - entries_[n_].offset;
    entries_[n_].checksum = XXH3_64bits_digest(hash_.get());
    ++n_;
  }
  void section(std::span<const std::byte> bytes) {
    begin();
    append(bytes);
    end();
  }

  void finish() {
    ByteWriter header;
    header.put(std::as_bytes(std::span(Layout::kMagic)));
    header.put(version_);
    header.put<std::uint32_t>(count32(n_));
    header.put(file_.size());
    header.put(std::as_bytes(std::span(entries_).first(n_)));
    header.put(session_checksum(header.get()));
    file_.write_at(0, header.get());
    file_.commit();
  }

 private:
  AtomicFile file_;
  std::uint32_t version_;
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> hash_;
  std::array<Layout::Entry, Layout::kSections> entries_{};
  std::size_t n_ = 0;
};

}  // namespace

void write_session(const std::filesystem::path& path, const SessionContent& content, const KvSource& kv, Links links) {
  MNEME_CHECK(!content.tokens.empty() && content.n_computed >= 0 &&
                  std::cmp_less_equal(content.n_computed, content.tokens.size()),
              "{} of {} tokens", content.n_computed, content.tokens.size());
  Writer out(path,
             content.reading  ? Layout::kVersion
             : content.method ? Layout::kVersionWithoutReading
                              : Layout::kVersionWithoutMethod,
             links);
  out.section(model_section(content.identity).get());
  out.section(state_section(content).get());
  out.section(document_section(content).get());
  out.section(std::as_bytes(std::span(content.tokens)));
  out.begin();
  const KvShape& shape = content.identity.kv;
  for (std::int32_t layer = 0; layer < shape.n_layers; ++layer) {
    for (std::int32_t head = 0; head < shape.n_kv_heads; ++head) {
      const std::uint64_t expected = shape.token_bytes() * content.n_stored(layer, head);
      std::uint64_t written = 0;
      kv(layer, head, [&](std::span<const std::byte> piece) {
        out.append(piece);
        written += piece.size();
      });
      MNEME_CHECK(written == expected, "{} bytes of keys and values, expected {}", written, expected);
    }
  }
  out.end();
  if (content.method) {
    out.section(method_section(content).get());
  } else if (content.reading) {
    out.section({});
  }
  if (content.reading) out.section(reading_section(*content.reading).get());
  out.finish();
}

}  // namespace mneme
