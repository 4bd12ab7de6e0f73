// What every SVG figure begins with.
#pragma once

#include <string_view>

namespace mneme::eval {

// The background, the text, the axes' rules (class="rule") and marks (class="mark"), in the light and the dark theme. A
// fill of its own overrides the text's.
inline constexpr std::string_view kPaper =
    "<style>svg{fill:#1f2328}.paper{fill:#fff}.rule{stroke:#ddd}.mark{stroke:#1f2328}"
    "@media(prefers-color-scheme:dark){svg{fill:#e6edf3}.paper{fill:#0d1117}.rule{stroke:#30363d}.mark{stroke:#e6edf3}}"
    "</style>\n<rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n";

}  // namespace mneme::eval
