# Puts the files of web/dist into the program. Included, this defines calla_embed_page; run as a script
# (cmake -DDIST=… -DOUT=… -DFILES=… -P), it writes OUT/page_files.cc and the compressed files beside it.

if(NOT CMAKE_SCRIPT_MODE_FILE)
  # calla_embed_page(TARGET): page_files() of server/page.h. Without web/dist it is empty.
  function(calla_embed_page target)
    set(dist ${PROJECT_SOURCE_DIR}/web/dist)
    set(out ${PROJECT_BINARY_DIR}/page)
    file(GLOB_RECURSE files CONFIGURE_DEPENDS RELATIVE ${dist} ${dist}/*)
    list(TRANSFORM files PREPEND ${dist}/ OUTPUT_VARIABLE paths)
    string(REPLACE ";" "," names "${files}")
    add_custom_command(OUTPUT ${out}/page_files.cc
                       COMMAND ${CMAKE_COMMAND} -DDIST=${dist} -DOUT=${out} -DFILES=${names}
                               -P ${PROJECT_SOURCE_DIR}/cmake/embed_page.cmake
                       DEPENDS ${paths} ${PROJECT_SOURCE_DIR}/cmake/embed_page.cmake
                       COMMENT "Embedding the page" VERBATIM)
    target_sources(${target} PRIVATE ${out}/page_files.cc)
  endfunction()
  return()
endif()

set(type_html "text/html; charset=utf-8")
set(type_js "text/javascript; charset=utf-8")
set(type_css "text/css; charset=utf-8")
set(type_svg "image/svg+xml")
set(type_woff2 "font/woff2")

file(REMOVE_RECURSE ${OUT}/gzip)
file(MAKE_DIRECTORY ${OUT}/gzip)
set(symbols "")
set(rows "")
set(index 0)

# .incbin takes the bytes as they are: no compiler has to read a megabyte of numbers.
function(embed name path)
  string(APPEND symbols
         "__asm__(\".pushsection .rodata\\n\"\n        \"${name}: .incbin \\\"${path}\\\"\\n\"\n"
         "        \"${name}_end: .byte 0\\n\"\n        \".popsection\");\n"
         "extern const char ${name}[] __asm__(\"${name}\");\nextern const char ${name}_end[] __asm__(\"${name}_end\");\n")
  set(symbols "${symbols}" PARENT_SCOPE)
endfunction()

string(REPLACE "," ";" FILES "${FILES}")
foreach(file ${FILES})
  cmake_path(GET file EXTENSION LAST_ONLY extension)
  string(SUBSTRING "${extension}" 1 -1 extension)
  if(NOT DEFINED type_${extension})
    message(FATAL_ERROR "web/dist/${file}: cmake/embed_page.cmake knows no content type for .${extension}")
  endif()
  file(SHA256 ${DIST}/${file} hash)
  string(SUBSTRING ${hash} 0 32 hash)
  embed(calla_page_${index} ${DIST}/${file})
  set(plain "{calla_page_${index}, calla_page_${index}_end}")
  set(gzip "{}")
  if(NOT extension STREQUAL "woff2")  # compressed already
    file(ARCHIVE_CREATE OUTPUT ${OUT}/gzip/${hash}.gz PATHS ${DIST}/${file} FORMAT raw COMPRESSION GZip COMPRESSION_LEVEL 9)
    embed(calla_page_gzip_${index} ${OUT}/gzip/${hash}.gz)
    set(gzip "{calla_page_gzip_${index}, calla_page_gzip_${index}_end}")
  endif()
  set(path "/${file}")
  if(file STREQUAL "index.html")
    set(path "/")
  endif()
  string(APPEND rows "      {\"${path}\", \"${type_${extension}}\", \"\\\"${hash}\\\"\",\n       ${plain}, ${gzip}},\n")
  math(EXPR index "${index} + 1")
endforeach()

if(rows)
  set(body "  static const PageFile files[] = {\n${rows}  };\n  return files;")
else()
  set(body "  return {};")
endif()
file(WRITE ${OUT}/page_files.cc
     "#include \"server/page.h\"\n\n${symbols}\nnamespace calla {\nstd::span<const PageFile> page_files() {\n${body}\n}\n}  // namespace calla\n")
