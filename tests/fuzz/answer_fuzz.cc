// Any answer in any known format: no crash, no error, the same events however it is cut, and no more text than came.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "src/text/answer/answer_parser.h"

namespace {

using namespace mneme;

void must(bool condition) {
  if (!condition) std::abort();
}

const AnswerTools& tools() {
  static const AnswerTools kAll = answer_tools_of(nlohmann::ordered_json::parse(R"([{"function": {"name": "f",
    "parameters": {"properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}}}])"));
  return kAll;
}

// The marks of a format, which a single byte of the input may name.
std::vector<std::string> marks_of(const AnswerFormat& f) {
  std::vector<std::string> marks = {f.thought_open,
                                    f.thought_close,
                                    f.call.section_open,
                                    f.call.section_close,
                                    f.call.open,
                                    f.call.close,
                                    f.call.id_open,
                                    f.call.id_end,
                                    f.call.name_end,
                                    f.call.name_tail,
                                    f.argument.key_open,
                                    f.argument.key_end,
                                    f.argument.value_open,
                                    f.argument.value_end,
                                    f.quote,
                                    "<|channel|>",
                                    "<|message|>",
                                    "<|start|>assistant to=functions.f",
                                    "<|end|>",
                                    "{\"name\": \"f\"",
                                    ", \"arguments\": {\"a\": \"",
                                    "f",
                                    "f(a='"};
  marks.insert(marks.end(), f.framing.begin(), f.framing.end());
  return marks;
}

std::string answer_of(const AnswerFormat& format, const std::uint8_t* data, std::size_t size) {
  const std::vector<std::string> marks = marks_of(format);
  std::string answer;
  for (std::size_t i = 0; i < size; ++i) {
    if (data[i] >= 0x80 && data[i] - 0x80u < marks.size()) {
      answer += marks[data[i] - 0x80];
    } else {
      answer += static_cast<char>(data[i]);
    }
  }
  return answer;
}

void join(std::vector<AnswerEvent>& events) {
  std::vector<AnswerEvent> out;
  for (AnswerEvent& event : events) {
    const bool begins = event.part == AnswerPart::kCallBegin || event.part == AnswerPart::kCallEnd;
    if (!out.empty() && !begins && out.back().part == event.part) {
      out.back().text += event.text;
    } else {
      out.push_back(std::move(event));
    }
  }
  events = std::move(out);
}

std::vector<AnswerEvent> read(const AnswerMarks& marks, std::string_view answer, std::size_t step,
                              const AnswerParser::Setting& setting) {
  const auto parser = AnswerParser::make(marks, setting);
  std::vector<AnswerEvent> events;
  for (std::size_t at = 0; at < answer.size(); at += step) parser->push(answer.substr(at, step), events);
  parser->finish(events);
  std::size_t end = 0, bytes = 0;
  int open = 0, calls = 0;
  for (const AnswerEvent& event : events) {
    must(event.end >= end && event.end <= answer.size());
    end = event.end;
    bytes += event.text.size();
    open += event.part == AnswerPart::kCallBegin ? 1 : event.part == AnswerPart::kCallEnd ? -1 : 0;
    calls += event.part == AnswerPart::kCallBegin ? 1 : 0;
    must(open == 0 || open == 1);
    must(event.part != AnswerPart::kArguments || open == 1);
  }
  must(open == 0 && (calls == 0) == !parser->has_calls());
  must(bytes <= 6 * answer.size() + 64 * static_cast<std::size_t>(calls));
  join(events);
  return events;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 3) return 0;
  static const std::vector<std::string> names = known_answer_formats();
  const AnswerMarks marks(*known_answer_format(names[data[0] % names.size()]));
  const AnswerParser::Setting setting{.in_thought = data[1] % 2 == 1, .tools = data[1] % 4 < 3 ? &tools() : nullptr};
  const std::string answer = answer_of(marks.format(), data + 3, std::min<std::size_t>(size - 3, 2000));
  const auto whole = read(marks, answer, std::max<std::size_t>(answer.size(), 1), setting);
  for (const std::size_t step : {std::size_t{1}, 1 + data[2] % std::size_t{40}}) {
    const auto cut = read(marks, answer, step, setting);
    must(cut.size() == whole.size());
    for (std::size_t i = 0; i < cut.size(); ++i)
      must(cut[i].part == whole[i].part && cut[i].text == whole[i].text && cut[i].id == whole[i].id &&
           cut[i].call == whole[i].call);
  }
  return 0;
}
