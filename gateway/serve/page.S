/* page.S - the files of the page at /, inside the program. */
#include "base/asm_notes.inc"

    .section .rodata

    .macro embed name, file
    .global page_\name
    .global page_\name\()_end
    .hidden page_\name
    .hidden page_\name\()_end
page_\name:
    .incbin "gateway/ui/\file"
page_\name\()_end:
    .endm

    embed index_html, index.html
    embed style_css, style.css
    embed icon_svg, icon.svg
    embed app_js, app.js
    embed api_js, api.js
    embed dom_js, dom.js
    embed card_js, card.js
    embed answer_js, answer.js
    embed live_js, live.js
