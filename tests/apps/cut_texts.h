// Labels of SVG figures that cannot be read whole.
#pragma once

#include <cstddef>
#include <regex>
#include <string>
#include <vector>

namespace mneme::eval {

// Texts that reach beyond the sides of the picture: 0.6 of their size a character, which is what sans-serif fonts have.
inline std::vector<std::string> cut_texts(const std::string& svg) {
  const std::regex box_form(R"re(viewBox="(-?\d+) 0 (\d+) (\d+)")re"),
      text_form(R"re(<text x="([-\d.]+)" y="([-\d.]+)"([^>]*)>([^<]*)</text>)re"), entity("&[a-z]+;");
  std::smatch box;
  if (!std::regex_search(svg, box, box_form)) return {"no viewBox"};
  const double left = std::stod(box[1]), right = left + std::stod(box[2]), bottom = std::stod(box[3]);
  std::vector<std::string> cut;
  std::size_t seen = 0, all = 0;
  for (std::size_t at = svg.find("<text"); at != svg.npos; at = svg.find("<text", at + 1)) ++all;
  for (std::sregex_iterator it(svg.begin(), svg.end(), text_form), end; it != end; ++it, ++seen) {
    const std::smatch& m = *it;
    const std::string rest = m[3], text = m[4];
    double characters = 0;
    for (const char c : std::regex_replace(text, entity, "&")) characters += (c & 0xc0) != 0x80 ? 1 : 0;
    const double size = rest.find("font-size=\"13\"") == rest.npos ? 11 : 13, width = 0.6 * size * characters;
    const double y = std::stod(m[2]);
    double x = std::stod(m[1]);
    if (rest.find("\"end\"") != rest.npos) x -= width;
    if (rest.find("\"middle\"") != rest.npos) x -= width / 2;
    if (x < left || x + width > right || y > bottom || y < 0.7 * size) cut.push_back(text);
  }
  if (seen != all) cut.emplace_back("a text that is not measured");
  return cut;
}

}  // namespace mneme::eval
