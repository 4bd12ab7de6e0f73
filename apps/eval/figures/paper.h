// The page of every SVG figure: its size, background and styles.
#pragma once

#include <string>
#include <string_view>

namespace mneme::eval {

// An SVG of `content`, which was drawn for `width` x `height` and in texts of 11 pixels; wider and higher where a text
// reaches beyond, so that no label is cut. The text, the axes' rules (class="rule") and marks (class="mark") follow the
// light and the dark theme; a fill of its own overrides the text's.
std::string svg_page(double width, double height, std::string_view content);

// A text between tags: <, > and & as entities.
std::string escaped(std::string_view text);

// How wide a text is at most in a sans-serif font of `size` pixels: 0.62 of the size a character.
double text_width(std::string_view text, double size = 11);

}  // namespace mneme::eval
