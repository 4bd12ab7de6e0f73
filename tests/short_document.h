// A document that the shipped model answers questions about.
#pragma once

#include <string>

namespace mneme {

inline const std::string kDocument =
    "It was a dark evening, and the rain fell upon the roofs of the town.\n"
    "The secret number of silver-harbour is 48213.\n"
    "The old man lit his pipe, and for some time nobody spoke.\n"
    "The secret number of copper-lantern is 70935.\n"
    "Then the clock struck nine, and they went to bed.";
inline const std::string kAboutHarbour = "What is the secret number of silver-harbour?";
inline const std::string kAboutLantern = "What is the secret number of copper-lantern?";

}  // namespace mneme
