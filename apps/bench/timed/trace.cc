#include "apps/bench/timed/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "src/base/error.h"

namespace mneme {
namespace {

using Clock = OpTimer::Clock;

double microseconds(Clock::duration d) {
  return std::chrono::duration<double, std::micro>(d).count();
}

}  // namespace

void write_chrome_trace(const std::filesystem::path& path, std::span<const NamedTrace> traces) {
  Clock::time_point zero = Clock::time_point::max();
  for (const NamedTrace& t : traces)
    for (const StepTrace& s : t.steps) zero = std::min(zero, s.begin);

  std::ofstream out(path);
  if (!out) fail(ErrorKind::kFile, "{}: cannot be written", path.string());
  const char* separator = "";
  // Names are ours: nothing in them needs escaping.
  const auto event = [&](std::string_view name, Clock::time_point begin, Clock::time_point end,
                         const std::string& args) {
    out << separator
        << fmt::format(R"({{"name":"{}","ph":"X","pid":1,"tid":1,"ts":{:.3f},"dur":{:.3f},"args":{{{}}}}})", name,
                       microseconds(begin - zero), microseconds(end - begin), args);
    separator = ",\n";
  };
  out << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  for (const NamedTrace& t : traces) {
    std::size_t number = 0;
    for (const StepTrace& s : t.steps) {
      event(t.name, s.begin, s.end, fmt::format(R"("step":{})", number++));
      for (const OpTimer::Span& span : s.spans)
        event(op_name(span.op), span.begin, span.end,
              span.layer >= 0 ? fmt::format(R"("layer":{})", span.layer) : std::string());
    }
  }
  out << "\n]}\n";
  if (!out.flush()) fail(ErrorKind::kFile, "{}: cannot be written", path.string());
}

}  // namespace mneme
