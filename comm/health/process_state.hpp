// What the kernel says that a process is doing. Knows no ranks.
#pragma once

#include <string>

namespace rondo::board {

/// "running", "sleeping", "stopped by a signal", "a zombie", ...; empty where the kernel does not
/// say, as when there is no such process.
std::string process_state(int pid);

/// The letter for it, as ps shows it: 'R', 'S', 'T'; '\0' where the kernel does not say.
char process_letter(int pid);
/// What a letter means; empty for one that is unknown.
std::string words_of(char letter);
inline bool is_stopped(char letter) { return letter == 'T' || letter == 't'; }

}  // namespace rondo::board
