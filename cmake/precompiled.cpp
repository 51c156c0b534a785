// CMake makes a precompiled header for a target, and a target wants a source.
