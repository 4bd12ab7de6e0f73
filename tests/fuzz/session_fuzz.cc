// A session's file of any bytes: an Error, or a session that can be read to the last byte.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "mneme/error.h"
#include "src/engine/session/session_parts.h"
#include "tests/engine/session/session_bytes.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace mneme;
  const auto given = std::as_bytes(std::span(data, size));
  try {
    for (const SessionManifest::Part& part : parse_manifest(given, "fuzz.session").parts)
      if (part.file.find('/') != std::string::npos) __builtin_trap();
  } catch (const Error&) {
  }
  std::vector<std::byte> bytes(given.begin(), given.end());
  for (const bool sealed : {false, true}) {  // with right checksums, too, which no fuzzer guesses
    if (sealed) reseal(bytes);
    try {
      const SessionFile file = SessionFile::parse(bytes, "fuzz.session");
      const KvShape& kv = file.content().identity.kv;
      const auto last = file.kv(kv.n_layers - 1, kv.n_kv_heads - 1);
      volatile std::byte keep = last.empty() ? std::byte{0} : last.back();
      (void)keep;
    } catch (const Error&) {
    }
  }
  return 0;
}
